"""The card of a cell whose process died: written by another process, which imports no plug-in."""

import contextlib
import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from longspan import attentions, tasks
from longspan.backbones.parameters import count
from longspan.backbones.slots import filled
from longspan.core import environment, mirror
from longspan.core.cell import Cell
from longspan.core.environment import choose_device
from longspan.core.lock import Busy, only_one
from longspan.core.registry import canonical_target
from longspan.core.spec import Spec
from longspan.results import card as cards
from longspan.results.store import Store
from longspan.runs.cell import RunPlan, as_json
from longspan.runs.describe import describe, nothing_reached
from longspan.runs.fabric import choose_precision
from longspan.runs.folder import BEGUN, tidy
from longspan.runs.unfinished import unfinished

MAX_BYTES = 2**20  # of a description, which may be of any size if a plug-in wrote it


def write_card(
    cell: Cell,
    reason: str,
    *,
    keep: bool,
    out: str | Path,
    device: str = "auto",
    devices: int = 1,
    real: bool = False,
) -> str:
    """Put the card into `out/cards` and tidy the run's folder, unless its state is to be kept; returns a sentence.

    The card has what the process itself wrote down before it began to train, or else what is known without it.
    """
    out = mirror.local(out)
    place = _place(out, cell)
    sentence = f"{cell.task} {cell.mechanism} seed {cell.seed} failed: {reason}"
    described = _begun(place, cell) or _known(cell, choose_device(device), devices, real)
    if described is None:
        return f"{sentence}. There is no card of it, as its task is a plug-in that could not be asked."
    Store(out / "cards").add(described | nothing_reached() | {"status": "fail", "reason": reason})
    if place is not None and place.exists() and not keep:
        with contextlib.suppress(Busy), only_one(place / "lock", f"the run {place.name}", wait=False):
            tidy(place)
    return sentence


def _place(out: Path, cell: Cell) -> Path | None:
    """The folder that the dead process has left: the one most recently written to by a run of this cell."""
    asked = as_json(asdict(cell))
    theirs = [one for one in unfinished(out) if one.cell is not None and as_json(asdict(one.cell)) == asked]
    return max(theirs, key=lambda one: one.updated).path if theirs else None


def _begun(place: Path | None, cell: Cell) -> cards.Card | None:
    """What the dead process wrote down, if that is a sound description of this cell."""
    path = None if place is None else place / BEGUN
    if path is None or not path.is_file() or path.stat().st_size > MAX_BYTES:
        return None
    try:
        found = json.loads(path.read_text())
        cards.validate(cards.seal(found | nothing_reached() | {"status": "fail", "reason": "unknown", "files": {}}))
        spec, asked = Spec.parse(found["mechanism"]), _as_run(cell)
        theirs = (spec.target, *(found[name] for name in ("protocol", "tier", "seed", "overrides")))
    except (OSError, ValueError, RecursionError, TypeError, KeyError):  # damaged, or forged
        return None
    same = theirs == (canonical_target(asked), cell.protocol, cell.tier, cell.seed, as_json(dict(cell.overrides)))
    same &= spec.options.items() <= asked.options.items() and (":" in cell.task or found["task"] == cell.task)
    return found if same else None


def _as_run(cell: Cell) -> Spec:
    """The mechanism in the form the protocol runs it in; a plug-in runs as it is, and must not be imported here."""
    spec = Spec.parse(cell.mechanism)
    if spec.options or cell.task not in tasks.registry.names(plugins=False):
        return spec
    task = tasks.get(cell.task)
    return Spec.parse(task.runs_as(cell.protocol, spec.target, task.patterns(cell.pattern)))


def _known(cell: Cell, device: str, devices: int, real: bool) -> cards.Card | None:
    """What is known of a cell whose plug-in must not be imported; None if the plug-in is its task."""
    if ":" in cell.task or cell.task not in tasks.registry.names(plugins=False):
        return None
    task = tasks.get(cell.task)
    protocol = task.rules(cell.protocol, cell.tier, cell.mechanism).override(cell.overrides)
    splits = task.splits(protocol, real=real)
    precision = choose_precision("auto", device)
    spec = Spec.parse(cell.mechanism)
    if spec.target in attentions.registry.names(plugins=False):  # may be imported and built here
        plan = RunPlan.of(cell)
        model = plan.model()
        return describe(plan, splits, count(model), filled(model), [], device, precision, devices)
    where, _, name = spec.target.rpartition(":")
    settings = as_json(asdict(protocol)) | {"device": device, "devices": devices, "precision": precision}
    if where.endswith(".py") and Path(where).is_file():
        settings["mechanism_sha256"] = hashlib.sha256(Path(where).read_bytes()).hexdigest()
    return {
        "schema": cards.SCHEMA_VERSION,
        "kind": "run",
        "task": task.name,
        "task_version": task.meta.version,
        "backbone": task.meta.backbone,
        "protocol": cell.protocol,
        "tier": cell.tier,
        "mechanism": str(Spec(canonical_target(spec), spec.options)),
        "title": name,
        "pattern": "+".join(task.patterns(cell.pattern)),
        "seed": cell.seed,
        "overrides": as_json(dict(cell.overrides)),
        "track": "free",
        "fidelity": False,
        "settings": settings,
        "dataset": {
            "name": task.dataset,
            "variant": splits.variant,
            "sha256": splits.sha256,
            "counts": splits.counts,
        },
        "code": environment.code_version(),
        "environment": environment.describe(),
        "parameters": {"total": None, "parts": {}, "baseline": None, "ratio": None, "within_rule": None},
    }
