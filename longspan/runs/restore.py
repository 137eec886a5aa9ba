"""Unfinished runs from another machine, from an archive that may be damaged or come from a stranger.

All of it is checked in a separate folder before anything is moved among the runs: parts that are missing, damaged or
of another archive, links, and names that lead elsewhere each get an error message. `export.py` has the format.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan.core import archive, environment, litter
from longspan.core.atomic import hidden, storage_errors
from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.core.lock import Busy, only_one
from longspan.runs.export import CHUNK, KIND, MANIFEST, MAX_PARTS, SCHEMA, Piece
from longspan.runs.folder import CELL, trained_by
from longspan.runs.unfinished import read_cell
from longspan.training.checkpoint import is_whole, newest_first, step_of
from longspan.training.pretraining import PRETRAINING

RUN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=,-]{0,199}")
FILE = re.compile(rf"cell\.json|({PRETRAINING}/)?checkpoint-[0-9]{{9}}\.pt")
STAGES = ("", PRETRAINING)  # folders with checkpoints, inside that of a run
MAX_MANIFEST = 2**24


@dataclass(frozen=True)
class Restored:
    """A run of an archive: its folder, the step of its checkpoint, whether it was put there, whose code trained it."""

    path: Path
    step: int
    placed: bool  # False: the run here has come as far, or farther
    other_commit: str | None = None  # the commit that trained it last, if it is not the one here


def restore(out: Path | str, file: Path) -> list[Restored]:
    """Put the runs of an archive into `out/runs`, once all its parts are known to be sound."""
    runs = Path(out) / "runs"
    with storage_errors(runs):
        runs.mkdir(parents=True, exist_ok=True)
    litter.sweep(runs)
    with storage_errors(runs), hidden(runs / "import", ".part", folder=True) as folder:
        _unpack(file, folder)
        found = sorted(folder.iterdir())
        for run in found:
            _check_run(run, file)
        return [_place(run, runs / run.name) for run in found]


def _place(run: Path, target: Path) -> Restored:
    theirs = _reached(run)
    target.mkdir(exist_ok=True)
    try:
        with only_one(target / "lock", f"the run {target.name}", wait=False):
            mine = _reached(target)
            if mine >= theirs:
                return Restored(target, max(mine[0], 0), placed=False)
            os.replace(run / CELL, target / CELL)
            for fresh in (newest for stage in STAGES for newest in newest_first(run / stage)):
                (target / fresh.relative_to(run)).parent.mkdir(exist_ok=True)
                os.replace(fresh, target / fresh.relative_to(run))
            commit, here = trained_by(target), environment.code_version()["commit"]
            return Restored(target, max(theirs[0], 0), placed=True, other_commit=commit if commit != here else None)
    except Busy as busy:
        raise UsageError(f"The run {target.name} is under way here ({busy.holder}); stop it first.") from None


def _reached(run: Path) -> tuple[int, ...]:
    """The newest step with a whole checkpoint, of the run and of the stage before it; -1 where there is none."""
    wholes = (filter(is_whole, newest_first(run / stage)) for stage in STAGES)
    return tuple(max((step_of(path) or 0 for path in whole), default=-1) for whole in wholes)


def _check_run(run: Path, file: Path) -> None:
    """Check that a run has a readable cell and one whole checkpoint for one stage or for both."""
    stages = [newest_first(run / stage) for stage in STAGES]
    if not any(stages) or any(len(stage) > 1 for stage in stages) or not (run / CELL).is_file():
        raise CorruptFile(f"{file} holds the run {run.name} without its cell or its one checkpoint; export it again.")
    if not all(is_whole(path) for stage in stages for path in stage):
        raise CorruptFile(f"{file} holds a damaged checkpoint of the run {run.name}; export it again.")
    try:
        read_cell(run / CELL)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptFile(f"{file} holds the run {run.name} with a cell that cannot be read ({error}).") from None


def _unpack(file: Path, folder: Path) -> None:
    """Assemble the files of all parts, each piece checked as it comes."""
    base = file.with_suffix("") if re.fullmatch(r"\.[0-9]{3,4}", file.suffix) else file
    first = file if file == base and file.exists() else Path(f"{base}.001")
    if not first.exists():
        raise DataMissing(f"There is no archive {base}, nor a first part {first.name}; check the name.")
    told = _unpack_part(first, folder, None)
    for number in range(2, told["parts"] + 1):
        path = Path(f"{base}.{number:03d}")
        if not path.exists():
            raise DataMissing(f"Part {number} of {told['parts']} is missing: there is no {path}; put it there.")
        _unpack_part(path, folder, told | {"part": number})
    sizes = told["sizes"]
    for (run, name), whole in sizes.items():
        if (size := (folder / run / name).stat().st_size) != whole:
            raise CorruptFile(f"{base} holds {size} of the {whole} bytes of {run}/{name}; export it again.")


def _unpack_part(path: Path, folder: Path, expected: dict[str, Any] | None) -> dict[str, Any]:
    """Append the pieces of one part to their files; returns what part.json says, with the sizes of all files so far."""
    members = archive.members(path, lambda name: True)
    with contextlib.closing(members):  # type: ignore[type-var]
        begin = next(members, None)
        if begin is None or begin.name != MANIFEST or begin.size > MAX_MANIFEST:
            raise CorruptFile(f"{path} does not begin with {MANIFEST}: it is no archive of unfinished runs.")
        told, pieces = _manifest(path, begin.readall(), expected)
        waiting = {piece.member: piece for piece in pieces}
        if len(waiting) != len(pieces) or sum(piece.bytes for piece in pieces) > path.stat().st_size:
            raise CorruptFile(f"{path} names a piece twice, or more bytes than it has; it was not written by longspan.")
        for member in members:
            piece = waiting.pop(member.name, None)
            if piece is None or piece.bytes != member.size:
                raise CorruptFile(f"{path} holds {member.name!r:.80}, which its {MANIFEST} does not name; refused.")
            _append(path, folder, piece, member.read, told["sizes"])
        if waiting:
            raise CorruptFile(f"{path} lacks {next(iter(waiting))}; copy or export it again.")
    return told


def _append(
    path: Path, folder: Path, piece: Piece, read: Callable[[int], bytes | None], sizes: dict[tuple[str, str], int]
) -> None:
    target = folder / piece.run / piece.file
    target.parent.mkdir(parents=True, exist_ok=True)
    have = target.stat().st_size if target.exists() else 0
    if have != piece.offset or sizes.setdefault((piece.run, piece.file), piece.size) != piece.size:
        raise CorruptFile(f"{path} continues {piece.member} from byte {piece.offset}, and there are {have}; refused.")
    digest = hashlib.sha256()
    with target.open("ab") as sink:
        while content := read(CHUNK):
            digest.update(content)
            sink.write(content)
    if digest.hexdigest() != piece.sha256:
        raise CorruptFile(f"{path} is damaged: {piece.member} has another SHA-256 than was written; copy it again.")


def _manifest(path: Path, content: bytes, expected: dict[str, Any] | None) -> tuple[dict[str, Any], list[Piece]]:
    """What part.json says, checked: its kind, its place among the parts, and names that stay in their folder."""
    try:
        told = json.loads(content)
        if (told["schema"], told["kind"]) != (SCHEMA, KIND):
            raise ValueError(f"schema {told['schema']!r:.20} of {told['kind']!r:.40}")
        place = {name: told[name] for name in ("archive", "part", "parts")}
        if not all(type(place[name]) is int for name in ("part", "parts")) or not 1 <= place["parts"] <= MAX_PARTS:
            raise ValueError("no number of parts")
        pieces = [Piece(**piece) for piece in told["pieces"]]
        for piece in pieces:
            _check_piece(piece)
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError) as error:
        raise CorruptFile(f"{path} has a {MANIFEST} that cannot be used ({error!s:.80}); refused.") from None
    wanted = {"archive": place["archive"], "part": 1, "parts": place["parts"]}
    wanted |= {name: expected[name] for name in wanted} if expected else {}
    if place != wanted:
        what = f"part {place['part']} of {place['parts']}"
        other = "" if place["archive"] == wanted["archive"] else " of another archive"
        raise CorruptFile(f"{path} is {what}{other}, where part {wanted['part']} of {wanted['parts']} was expected.")
    return place | {"sizes": expected["sizes"] if expected else {}}, pieces


def _check_piece(piece: Piece) -> None:
    numbers = (piece.offset, piece.bytes, piece.size)
    if not all(type(number) is int for number in numbers):
        raise ValueError("sizes that are no integers")
    if not 0 <= piece.offset < piece.offset + piece.bytes <= piece.size:
        raise ValueError("a piece outside its file")
    if not (isinstance(piece.run, str) and RUN.fullmatch(piece.run) and ".." not in piece.run):
        raise ValueError(f"a run called {piece.run!r:.60}")
    if not (isinstance(piece.file, str) and FILE.fullmatch(piece.file)):
        raise ValueError(f"a file called {piece.file!r:.60}, which no unfinished run has")
