"""Runs that were started and have no card yet."""

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from longspan import tasks
from longspan.core.atomic import storage_errors
from longspan.core.lock import Busy, only_one
from longspan.runs.cell import Cell
from longspan.runs.folder import CELL, tidy
from longspan.training.checkpoint import SET_ASIDE, newest_first, step_of


@dataclass(frozen=True)
class Unfinished:
    """A run that was started and has no card yet; without a cell, a folder that can only be removed, and why."""

    path: Path
    cell: Cell | None
    step: int
    steps: int
    bytes: int
    updated: datetime
    problem: str | None = None


def unfinished(out: Path | str = "out") -> list[Unfinished]:
    """All unfinished runs in `out/runs`, with folders of older versions and broken ones."""
    folders = sorted(path for path in (Path(out) / "runs").glob("*") if path.is_dir())
    return [_look(folder) for folder in folders if _has_something(folder)]


def clean(out: Path | str = "out") -> list[Path]:
    """Remove unfinished runs, with checkpoints that were set aside; returns their folders.

    Cards, logs and data stay, and so does a run that is in progress.
    """
    removed = []
    for one in unfinished(out):
        alone = only_one(one.path / "lock", f"the run {one.path.name}", wait=False)
        with storage_errors(one.path), contextlib.suppress(Busy), alone:
            tidy(one.path, set_aside=True)
            removed.append(one.path)
    return removed


def _has_something(folder: Path) -> bool:
    return any((folder / name).exists() for name in (CELL, SET_ASIDE)) or bool(newest_first(folder))


def _look(folder: Path) -> Unfinished:
    try:
        cell, steps = read_cell(folder / CELL)
        problem = None
    except FileNotFoundError:
        cell, steps, problem = None, 0, "only checkpoints without a run; longspan runs --clean removes them"
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:80]
        cell, steps, problem = None, 0, f"cannot be read ({reason}); longspan runs --clean removes it"
    files = list(_files(folder))
    step = max((step_of(path) or 0 for path in newest_first(folder)), default=0)
    updated = datetime.fromtimestamp(max((file.st_mtime for file in files), default=0), UTC)
    return Unfinished(folder, cell, step, steps, sum(file.st_size for file in files), updated, problem)


def _files(folder: Path) -> Iterator[os.stat_result]:
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # gone meanwhile: the run goes on or has just finished
            if stat.S_ISREG((found := path.lstat()).st_mode):
                yield found


def read_cell(path: Path) -> tuple[Cell, int]:
    """The cell and its number of steps; a ValueError, TypeError or KeyError if that is not what the file holds."""
    record: Any = json.loads(path.read_text())
    cell, steps = Cell(**record["cell"]), record["steps"]
    words = (cell.task, cell.mechanism, cell.protocol, cell.tier)
    plain = {type(cell.seed), type(steps)} == {int} and isinstance(cell.overrides, dict)
    if not (plain and all(isinstance(word, str) for word in words)):
        raise TypeError("other kinds of values than a cell has")
    if ":" not in cell.task and cell.task not in tasks.names():
        raise ValueError(f"there is no task {cell.task!r}")
    return cell, steps
