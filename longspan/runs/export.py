"""Unfinished runs for another machine: the newest checkpoint of each of their stages, in parts of a size limit.

    export("out", Path("runs.tar"), part_bytes=15_000_000)      # runs.tar.001, runs.tar.002, ...
    restore("elsewhere", Path("runs.tar"))                      # the same command there resumes where it stopped here

Each part is a tar archive by itself. It begins with `part.json`: which archive it belongs to, which part of how many
it is, and the file, the offset and a SHA-256 of every piece in it. `restore.py` reads them back.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import tarfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from longspan.core.atomic import hidden, storage_errors
from longspan.core.errors import UsageError
from longspan.core.lock import Busy, only_one
from longspan.runs.folder import CELL
from longspan.runs.unfinished import Unfinished, unfinished
from longspan.training.checkpoint import is_whole, newest_first
from longspan.training.pretraining import PRETRAINING

SCHEMA, KIND, MANIFEST = 1, "unfinished runs", "part.json"
FRAME = 24 * 1024  # bytes of a part besides its pieces: header and end of the tar, and part.json itself
PER_PIECE = 2048  # bytes that each piece adds: its header, its padding and its entry in part.json
LEAST_PART = 2 * FRAME
MAX_PARTS = 9999
CHUNK = 2**20


@dataclass(frozen=True)
class Piece:
    """A range of bytes of one file of a run, from an offset on; `size` is that of the whole file."""

    run: str
    file: str
    offset: int
    bytes: int
    size: int
    sha256: str

    @property
    def member(self) -> str:
        """Its name in the tar archive: that of the file, if it is whole."""
        whole = self.bytes == self.size
        return f"{self.run}/{self.file}" if whole else f"{self.run}/{self.file}.from{self.offset:012d}"


def export(out: Path | str, file: Path, *, part_bytes: int | None = None) -> tuple[list[Path], list[Unfinished]]:
    """Write every unfinished run that has a checkpoint; returns the files written and the runs in them.

    One archive, or parts `FILE.001`, `FILE.002`, ... of at most `part_bytes`. None of them appears before all are
    written. A run in progress is refused: its state would move on while it is copied.
    """
    if part_bytes is not None and part_bytes < LEAST_PART:
        raise UsageError(f"A part of {part_bytes} bytes was asked for; choose --part-size {LEAST_PART} or more.")
    if taken := [path for path in (file, *_numbered(file)) if path.exists()]:
        raise UsageError(f"The archive was to be {file}, but {taken[0]} exists; choose another name or remove it.")
    with contextlib.ExitStack() as held:
        chosen = [(one, newest) for one in unfinished(out) if one.cell and (newest := _newest(one.path))]
        if not chosen:
            raise UsageError(f"No run in {Path(out) / 'runs'} has a checkpoint, so that there is nothing to export.")
        for one, _ in chosen:
            _hold(one.path, held)
        files = [(one.path, path) for one, newest in chosen for path in (one.path / CELL, *newest)]
        parts = _parts(files, part_bytes)
        names = [file] if len(parts) == 1 else [Path(f"{file}.{number:03d}") for number in range(1, len(parts) + 1)]
        common = {"schema": SCHEMA, "kind": KIND, "archive": uuid.uuid4().hex, "parts": len(parts)}
        with storage_errors(file), hidden(file, ".part", folder=True) as folder:
            for number, (name, pieces) in enumerate(zip(names, parts, strict=True), start=1):
                told = common | {"part": number, "pieces": [asdict(piece) for _, piece in pieces]}
                _write_part(folder / name.name, told, pieces)
            for name in names:
                os.replace(folder / name.name, name)
    return names, [one for one, _ in chosen]


def _newest(folder: Path) -> list[Path]:
    """The newest whole checkpoint of the run, and of the stage before it."""
    stages = (filter(is_whole, newest_first(stage)) for stage in (folder, folder / PRETRAINING))
    return [path for stage in stages if (path := next(stage, None))]


def _hold(folder: Path, held: contextlib.ExitStack) -> None:
    """Keep other processes from resuming a run meanwhile."""
    try:
        held.enter_context(only_one(folder / "lock", f"the run {folder.name}", wait=False))
    except Busy as busy:
        raise UsageError(
            f"The run {folder.name} is under way ({busy.holder}); stop it, which saves its state, first."
        ) from None


def _parts(files: Sequence[tuple[Path, Path]], part_bytes: int | None) -> list[list[tuple[Path, Piece]]]:
    """Cut files, each given with the folder of its run, into pieces, and group these into parts below the limit."""
    parts: list[list[tuple[Path, Piece]]] = [[]]
    room = None if part_bytes is None else part_bytes - FRAME
    left = room
    for run, path in files:
        size, offset = path.stat().st_size, 0
        while offset < size:
            if left is not None and left <= PER_PIECE:
                parts.append([])
                left = room
            length = size - offset if left is None else min(size - offset, left - PER_PIECE)
            name, digest = path.relative_to(run).as_posix(), _digest(path, offset, length)
            piece = Piece(run.name, name, offset, length, size, digest)
            parts[-1].append((path, piece))
            offset += length
            left = None if left is None else left - length - PER_PIECE
    if len(parts) > MAX_PARTS:
        raise UsageError(f"The archive would have {len(parts)} parts, more than {MAX_PARTS}; choose a larger size.")
    return parts


def _write_part(target: Path, told: dict[str, Any], pieces: list[tuple[Path, Piece]]) -> None:
    manifest = json.dumps(told, indent=1).encode()
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(_header(MANIFEST, len(manifest)), io.BytesIO(manifest))
        for path, piece in pieces:
            with path.open("rb") as source:
                source.seek(piece.offset)
                tar.addfile(_header(piece.member, piece.bytes), source)


def _header(name: str, size: int) -> tarfile.TarInfo:
    """A header without the owner or the time of the file."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info


def _digest(path: Path, offset: int, length: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        source.seek(offset)
        while length and (content := source.read(min(CHUNK, length))):
            digest.update(content)
            length -= len(content)
    return digest.hexdigest()


def _numbered(file: Path) -> Iterator[Path]:
    """Parts of an archive that exist already."""
    return (path for path in file.parent.glob(f"{file.name}.*") if re.fullmatch(r"\.[0-9]{3,4}", path.suffix))
