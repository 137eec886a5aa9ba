"""A matrix of cells in progress: what its command writes down about each, and what the runs report themselves.

    with noted(out, "ray", cells) as journal:
        journal.note(cell, "done", seconds=12.5)
    for row in rows(out): ...                       # of the commands that are running, else of the last one

The command appends a line to `out/matrices/<name>.jsonl` for every change; runs write how far they are into their own
folders. All of it can be read by anyone who sees the folder, whatever launched the cells.
"""

import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from longspan.core.atomic import storage_errors
from longspan.core.cell import Cell
from longspan.core.machine import machine
from longspan.core.pulse import Pace, pace_of

FOLDER = "matrices"
KEPT = 10  # journals; older ones are removed
STATES = ("running", "queued", "failed", "stopped", "done")
ENDED = ("done", "failed", "stopped")


@dataclass(frozen=True)
class Row:
    """One cell: its state, and how far it is, why it failed or how many seconds it took where that is known."""

    cell: Cell
    state: str = "queued"
    pace: Pace | None = None
    reason: str = ""
    seconds: float | None = None


class Journal:
    """What one command writes down; only that command appends lines."""

    def __init__(self, path: Path):
        self.path = path
        self._file = path.open("a", encoding="utf-8")

    def write(self, **what: Any) -> None:
        with contextlib.suppress(OSError):  # cells go on while the disk cannot be reached; the journal has a gap
            self._file.write(json.dumps(what) + "\n")
            self._file.flush()

    def note(self, cell: Cell, state: str, *, reason: str = "", seconds: float | None = None) -> None:
        self.write(cell=key_of(cell), state=state, reason=reason, seconds=seconds)

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def noted(out: Path, launcher: str, cells: Sequence[Cell]) -> Iterator[Journal]:
    """A journal of these cells, all of them queued; it is kept for later reading."""
    folder = out / FOLDER
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(folder.glob("*.jsonl"))[: -KEPT + 1]:
            old.unlink(missing_ok=True)
        name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:8]}.jsonl"
        journal = Journal(folder / name)
        who = {"host": socket.gethostname(), "machine": machine(), "pid": os.getpid()}
        journal.write(launcher=launcher, cells=[asdict(cell) for cell in cells], **who)
    try:
        yield journal
        journal.write(ended=True)
    finally:
        journal.close()


def rows(out: Path) -> list[Row]:
    """The cells of all commands that are running; if none is, those of the last one."""
    journals = [found for path in sorted((out / FOLDER).glob("*.jsonl")) if (found := _read(path)) is not None]
    chosen = [found for alive, found in journals if alive] or [found for _, found in journals[-1:]]
    merged: dict[str, Row] = {}
    for found in chosen:
        merged |= found
    paces = _paces(out) if any(row.state not in ENDED for row in merged.values()) else {}
    for key, row in merged.items():
        if row.state not in ENDED and key in paces:
            merged[key] = replace(row, state="running", pace=paces[key])
    return sorted(merged.values(), key=lambda row: STATES.index(row.state))


def seconds_left(found: Sequence[Row]) -> float | None:
    """Seconds until all are done, with as many at once as are running now; None while too little is known."""
    running = [row for row in found if row.state == "running"]
    queued = sum(row.state == "queued" for row in found)
    known = [row.pace.seconds_left for row in running if row.pace and row.pace.seconds_left is not None]
    took = [row.seconds for row in found if row.state == "done" and row.seconds]
    if not running or len(known) < len(running) or (queued and not took):
        return None
    each = sum(took) / len(took) if took else 0.0
    return max([*known, (sum(known) + queued * each) / len(running)])


def _read(path: Path) -> tuple[bool, dict[str, Row]] | None:
    """Whether the command is running, and its cells by key; None where it is no journal."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        head = json.loads(lines[0])
        found = {key_of(cell): Row(cell) for cell in (Cell(**words) for words in head["cells"])}
        if not all(isinstance(row.cell.overrides, dict) for row in found.values()):
            return None
        alive = head["machine"] != machine() or Path(f"/proc/{int(head['pid'])}").exists()
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    for line in lines[1:]:
        with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):  # a half-written line
            change = json.loads(line)
            if change.get("ended"):
                alive = False
            elif change["state"] in STATES and change["cell"] in found:
                old = found[change["cell"]]
                found[change["cell"]] = replace(
                    old, state=change["state"], reason=str(change["reason"]), seconds=change["seconds"]
                )
    if not alive:
        found = {key: replace(row, state="stopped") if row.state == "queued" else row for key, row in found.items()}
    return alive, found


def _paces(out: Path) -> dict[str, Pace]:
    """How far the runs are that a process is working on, by the key of their cell."""
    found = {}
    for folder, key in _begun(out):
        if any(folder.glob(".lock.*.lease")) and (pace := pace_of(folder)) is not None:
            found[key] = pace
    return found


def folders_of(out: Path, cells: Sequence[Cell]) -> list[Path]:
    """The folders of runs of these cells that were begun and have no card yet."""
    wanted = set(map(key_of, cells))
    return [folder for folder, key in _begun(out) if key in wanted]


def _begun(out: Path) -> Iterator[tuple[Path, str]]:
    """Folders of unfinished runs with the keys of their cells; those that cannot be read are skipped."""
    for path in (out / "runs").glob("*/cell.json"):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            yield path.parent, key_of(Cell(**json.loads(path.read_text())["cell"]))


def key_of(cell: Cell) -> str:
    """The cell as text, by which it is recognised in journals."""
    return json.dumps(asdict(cell), sort_keys=True)
