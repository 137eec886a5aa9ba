"""Ask a question of the trained model behind a run card, and save the answer as a probe card.

    card, path = ask("span", trained, samples=100)       # longspan.ask("span", "out/cards/listops/....json")
    card["results"]["mean"]

The answer goes into `out/cards/probes`, with large arrays in a file beside it.
"""

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from longspan import probes
from longspan.core import environment
from longspan.core.atomic import storage_errors
from longspan.core.errors import UsageError
from longspan.core.mirror import local
from longspan.probes import Answer, TrainedModel
from longspan.results import card as cards
from longspan.results.schema import PROBE_SCHEMA, SCHEMA_VERSION
from longspan.results.store import Store


def ask(
    question: str,
    trained: TrainedModel,
    *,
    samples: int | None = None,
    seed: int = 0,
    out: Path | str = "out",
) -> tuple[cards.Card, Path]:
    """The probe card and its path. `samples` defaults to that of the question."""
    probe = probes.get(question)
    if samples is not None and samples < 1:
        raise UsageError(f"A question needs at least 1 sample, got {samples}; give a positive number.")
    answer = probe.ask(trained, samples=probe.SAMPLES if samples is None else samples, seed=seed)
    record = describe(question, trained, answer)
    store = Store(local(out) / "cards")
    with tempfile.TemporaryDirectory(prefix="longspan-probe-") as folder:
        path = store.add(record, _files(Path(folder), answer))
    return cards.read(path), path


def describe(question: str, trained: TrainedModel, answer: Answer) -> cards.Card:
    """The probe card, without its hash."""
    run = trained.run
    names = [name for name in PROBE_SCHEMA["properties"]["subject"]["required"] if name != "card"]
    subject = {**{name: run[name] for name in names}, "card": run["sha256"]}
    subject |= {"dataset": {"variant": run["dataset"]["variant"]}, "overrides": run["overrides"]}
    return {
        "schema": SCHEMA_VERSION,
        "kind": "probe",
        "question": question,
        "subject": subject,
        "method": answer.method,
        "settings": answer.settings | {"device": trained.device.type, "precision": "fp32"} | trained.code,
        "results": answer.results,
        "code": environment.code_version(),
        "environment": environment.describe(),
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def _files(folder: Path, answer: Answer) -> dict[str, Path]:
    if not answer.arrays:
        return {}
    path = folder / "arrays.npz"
    with storage_errors(path):
        np.savez_compressed(path, allow_pickle=False, **answer.arrays)
    return {"arrays": path}
