"""Runs that were started and have no card yet."""

import contextlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from longspan.core.lock import Busy, only_one
from longspan.runs.cell import Cell
from longspan.runs.train import tidy


@dataclass(frozen=True)
class Unfinished:
    """A run that was started and has no card yet."""

    path: Path
    cell: Cell
    step: int
    steps: int
    bytes: int
    updated: datetime


def unfinished(out: Path | str = "out") -> list[Unfinished]:
    found = []
    for path in sorted((Path(out) / "runs").glob("*/cell.json")):
        folder = path.parent
        saved = sorted(folder.glob("checkpoint-*.pt"))
        record = json.loads(path.read_text())
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        step = int(saved[-1].stem.split("-")[1]) if saved else 0
        updated = datetime.fromtimestamp(max(file.stat().st_mtime for file in (path, *saved)), UTC)
        found.append(Unfinished(folder, Cell(**record["cell"]), step, record["steps"], size, updated))
    return found


def clean(out: Path | str = "out") -> list[Path]:
    """Remove unfinished runs and say which; cards, logs and data are not touched, nor a run that is in progress."""
    removed = []
    for one in unfinished(out):
        with contextlib.suppress(Busy), only_one(one.path / "lock", f"the run {one.path.name}", wait=False):
            tidy(one.path)
            removed.append(one.path)
    return removed
