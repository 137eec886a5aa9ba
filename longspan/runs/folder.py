"""The folder of a run in progress: what decides its name, and what is kept of it in the end."""

import hashlib
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from longspan.core import environment, mirror
from longspan.core.atomic import remove, write_json
from longspan.core.pulse import PULSE
from longspan.core.version import VERSION
from longspan.datasets.base import Splits
from longspan.results import card as cards
from longspan.results.run_settings import SPEED
from longspan.runs.cell import Cell, RunPlan, as_json
from longspan.runs.training_source import training_source
from longspan.training.belongs import Belongs
from longspan.training.checkpoint import SET_ASIDE, newest_first
from longspan.training.pretraining import PRETRAINING

CELL = "cell.json"  # which run the folder belongs to, and whether its speed is meaningful
BEGUN = "begun.json"  # what is known of a card before training
NAMED = ("run", "task_source", "dataset", "precision", "device")  # facts in the name of a folder


def belonging(plan: RunPlan, splits: Splits, device: str, precision: str) -> Belongs:
    """Everything that decides the numbers of a run; a checkpoint is resumed only where all of it is the same.

    The number of devices and how they share the work are left out: a run can resume with more of them, or with fewer.
    """
    identity = plan.identity
    recipe = identity["settings"]["recipe"]
    identity["settings"]["recipe"] = {name: recipe[name] for name in recipe if f"recipe.{name}" not in SPEED}
    facts = {
        "run": identity,
        "code": plan.code,
        "task_source": plan.task_source,
        "dataset": {"name": plan.task.dataset, "sha256": splits.sha256, "variant": splits.variant},
        "precision": precision,
        "device": device,
        "torch": environment.describe()["torch"],
        "longspan": {"version": VERSION, "training_sha256": training_source(plan)},
    }
    return Belongs(as_json(facts))


def folder_name(plan: RunPlan, belongs: Belongs) -> str:
    """A name for each run that can be resumed by itself: another precision or other data have another folder.

    A fingerprint is compared with a tolerance, so it cannot be part of a hash; the version of torch and the source that
    trains are checked in the checkpoint.
    """
    code = {name: value for name, value in belongs.facts["code"].items() if name != "mechanism_fingerprint"}
    facts = {name: belongs.facts[name] for name in NAMED} | {"code": code}
    digest = hashlib.sha256(cards.canonical(facts)).hexdigest()[:12]
    return f"{plan.task.name}-{plan.cell.protocol}-{plan.cell.tier}-seed{plan.cell.seed}-{digest}"


def begin(folder: Path, cell: Cell, steps: int, hardware: str, *, shared: bool) -> bool:
    """Write down which run the folder belongs to; True where its speed is not meaningful.

    That is where it shares its device, or an earlier part of it did or was trained on other hardware.
    """
    before = _record(folder / CELL) if newest_first(folder) else {}
    shared |= before.get("shared") is True or before.get("hardware", hardware) != hardware
    record = {"cell": as_json(asdict(cell)), "steps": steps, "hardware": hardware, "shared": shared}
    record["commit"] = environment.code_version()["commit"]
    write_json(folder / CELL, record)
    mirror.push(folder / CELL)
    return shared


def mark_shared(folder: Path) -> None:
    """Write down that other work shares the device, in case the run is interrupted."""
    write_json(folder / CELL, _record(folder / CELL) | {"shared": True})


def trained_by(folder: Path) -> str | None:
    """The commit of the code that trained the run last; None where that is not known."""
    commit = _record(folder / CELL).get("commit")
    return commit if isinstance(commit, str) else None


def _record(path: Path) -> dict[str, Any]:
    """What was written down about the run; empty where it cannot be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def tidy(folder: Path, *, set_aside: bool = False) -> None:
    """Drop what only an unfinished run needs, and what was set aside if that is asked for; logs stay."""
    for name in ("checkpoint-*.pt", "*.safetensors", "predictions.npz", "samples.npz", CELL, BEGUN, PULSE, ".*.part"):
        for path in folder.glob(name):
            remove(path)
    remove(folder / PRETRAINING)
    mirror.drop_folder(folder)
    if set_aside:
        remove(folder / SET_ASIDE)
    if folder.exists() and not any(path.name.lstrip(".").split(".")[0] != "lock" for path in folder.iterdir()):
        shutil.rmtree(folder, ignore_errors=True)
