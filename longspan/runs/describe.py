"""What goes on the card of a run: the part known before training, the part that training decides, the files."""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longspan import rules
from longspan.core import environment
from longspan.core.atomic import storage_errors
from longspan.datasets.base import Splits
from longspan.results import card as cards
from longspan.results import samples
from longspan.results.predictions import compact, labels_digest
from longspan.runs.cell import RunPlan, count_baseline
from longspan.runs.training_source import training_source
from longspan.tasks.classification import Classification
from longspan.training.loop import Trained, save_weights
from longspan.training.progress import Progress
from longspan.training.selection import Selection


def describe(
    plan: RunPlan,
    splits: Splits,
    parameters: dict[str, Any],
    slots: dict[str, str],
    read: list[str],
    device: str,
    precision: str,
    devices: int,
) -> cards.Card:
    """The part of a card that is known before training."""
    cell = plan.cell
    baseline = count_baseline(plan)
    pretraining = plan.protocol.recipe.pretraining_steps
    identity = plan.identity
    first = (pretraining, identity.get("initial_sha256"))
    verdicts = rules.judge(plan.mechanism.meta, cell.overrides, parameters["total"], baseline, read, *first)
    settings = identity.pop("settings")
    preset = {} if plan.preset is None else {"preset": plan.preset}
    task_code = {} if plan.task_source is None else {"task_sha256": plan.task_source}
    return (
        identity
        | preset
        | {
            "schema": cards.SCHEMA_VERSION,
            "kind": "run",
            "backbone": plan.task.meta.backbone,
            "slots": slots,
            "title": plan.mechanism.meta.title,
            "track": rules.track(verdicts, cell.overrides, cell.protocol),
            "rules": {name: asdict(verdict) for name, verdict in verdicts.items()},
            "fidelity": plan.mechanism.meta.fidelity,
            "settings": settings
            | {"device": device, "devices": devices, "precision": precision}
            | plan.code
            | task_code,
            "dataset": {
                "name": plan.task.dataset,
                "variant": splits.variant,
                "sha256": splits.sha256,
                "counts": splits.counts,
                **_labels(plan, splits),
            },
            "code": environment.code_version() | {"training_sha256": training_source(plan)},
            "environment": environment.describe() | {"threads": torch.get_num_threads()},
            "parameters": {
                **parameters,
                "baseline": baseline,
                "ratio": round(parameters["total"] / baseline, 6),
                "within_rule": verdicts["parameters"].kept,
            },
        }
    )


def _labels(plan: RunPlan, splits: Splits) -> dict[str, str]:
    """A digest of the test labels, with which `verify` checks the labels stored beside the predictions."""
    if not isinstance(plan.task, Classification):  # only there a prediction is compared with one label
        return {}
    return {"labels_sha256": labels_digest(np.asarray(splits.test.labels))}


def outcome(plan: RunPlan, splits: Splits, trained: Trained | None, state: Progress) -> cards.Card:
    """The part of a card that training decides."""
    speed = state.step / state.train_seconds if state.train_seconds else None
    found: cards.Card = {
        "curve": state.curve,
        "timing": {
            "wall_seconds": None,
            "steps_per_second": speed and round(speed, 4),
            "examples_per_second": speed and round(speed * plan.protocol.recipe.batch_size, 3),
            "training_seconds": round(state.train_seconds, 3),
            "resumed": state.resumed,
        },
        "selected_step": trained and trained.selected_step,
        "metrics": None,
        "score": None,
    }
    if Selection(plan.task.meta, plan.protocol.recipe).gave_up(state):
        found["gave_up_at"] = state.step
    if trained is None:
        return found
    meta = plan.task.meta
    results = {"valid": trained.valid, "test": trained.test}
    if trained.also is not None:
        results[f"test_at_{plan.protocol.recipe.also_at}"] = trained.also
        found["selected_until"] = {str(plan.protocol.recipe.also_at): state.also_step}
    found["metrics"] = {
        name: {metric: {"value": value, "count": result.count} for metric, value in result.metrics.items()}
        for name, result in results.items()
    }
    found["score"] = {
        "name": meta.score,
        "split": "test",
        "value": trained.test.metrics[meta.score],
        "count": trained.test.count,
        "higher_is_better": meta.higher_is_better,
        "unit": meta.unit,
        "chance": plan.task.chance(splits.test),
        **({"selected_by": meta.selected_by} if meta.selected_by else {}),
    }
    return found


def nothing_reached() -> cards.Card:
    """The part that training decides, for a run whose process died."""
    unknown = dict.fromkeys(("wall_seconds", "steps_per_second", "examples_per_second"))
    return {
        **dict.fromkeys(("metrics", "score", "selected_step", "energy")),
        "curve": [],
        "timing": unknown,
        "memory": {"peak_bytes": None},
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def files_of(folder: Path, trained: Trained | None, *, weights: bool) -> dict[str, Path]:
    """What is kept beside the card: the log, the selected weights, what they predicted for each test example, samples.

    Weights that were also selected up to an earlier step are kept as `weights_at`.
    """
    files = {"log": folder / "log.csv"} if (folder / "log.csv").exists() else {}
    if trained is None:
        return files
    kept = {"predictions": compact(trained.test.predictions), "samples": _sound_samples(trained)}
    for name, found in kept.items():
        if name == "predictions" or found:
            files[name] = folder / f"{name}.npz"
            with storage_errors(files[name]):
                np.savez_compressed(files[name], allow_pickle=False, **found)
    if weights:
        selected = {"weights": trained.weights, "weights_at": trained.also_weights}
        for name, found in selected.items():
            if found:
                files[name] = folder / f"{name}.safetensors"
                save_weights(found, files[name])
    return files


def _sound_samples(trained: Trained) -> Mapping[str, np.ndarray]:
    """Samples that can be read back from beside a card; others are left out rather than losing the run."""
    found = trained.test.samples
    if found and (fault := samples.fault_of(found)):
        print(f"The samples of the run are left out: {fault}.", file=sys.stderr, flush=True)
        return {}
    return found
