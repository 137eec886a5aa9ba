"""Checkpoints that survive a crash: written atomically, with a hash at the end, the previous one kept.

A file is the saved state followed by its SHA-256. One that is truncated, altered or belongs to another run is moved to
the folder `set-aside`, where nothing reads it, and the previous one is used.
"""

import contextlib
import hashlib
import io
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from longspan.core import mirror
from longspan.core.atomic import remove, storage_errors, write_bytes
from longspan.core.errors import CorruptFile

KEEP = 2
SET_ASIDE = "set-aside"
_DIGEST = 32

Unusable = tuple[Path, str]  # a file and what is wrong with it


def save(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write the state after `step` steps and drop all but the newest two."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    path = folder / f"checkpoint-{step:09d}.pt"
    write_bytes(path, payload + hashlib.sha256(payload).digest())
    mirror.push(path)
    for old in newest_first(folder)[KEEP:]:
        remove(old)
        mirror.drop([old])
    return path


def load(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CorruptFile(f"The checkpoint {path.name} cannot be read ({error.strerror}).") from error
    payload, digest = content[:-_DIGEST], content[-_DIGEST:]
    if hashlib.sha256(payload).digest() != digest:
        raise CorruptFile(f"The checkpoint {path.name} is damaged or cut short.")
    try:
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its readers do: pickle, zip, its own
        wrong = f"holds something else than weights and numbers ({type(error).__name__})"
        raise CorruptFile(f"The checkpoint {path.name} {wrong}.") from error


def is_whole(path: Path) -> bool:
    """Whether a file ends with the hash of its content; nothing of it is loaded."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        digest, left = hashlib.sha256(), path.stat().st_size - _DIGEST
        while left > 0 and (content := file.read(min(2**20, left))):
            digest.update(content)
            left -= len(content)
        return left == 0 and file.read() == digest.digest()
    return False


def latest(
    folder: Path, fault: Callable[[Path, Any], str | None] = lambda path, state: None
) -> tuple[dict[str, Any] | None, list[Unusable]]:
    """The newest state that is whole and has no `fault` (None if there is none), and the files that were skipped."""
    unusable: list[Unusable] = []
    for path in newest_first(folder):
        try:
            state = load(path)
        except CorruptFile as error:
            unusable.append((path, str(error)))
            continue
        if (wrong := fault(path, state)) is None:
            return state, unusable
        unusable.append((path, f"The checkpoint {path.name} {wrong}."))
    return None, unusable


def set_aside(path: Path, sentence: str) -> None:
    """Move a file that cannot be used to where nothing reads it, and say so; it must not crowd out sound ones."""
    folder = path.parent / SET_ASIDE
    with storage_errors(folder):
        folder.mkdir(exist_ok=True)
        free = (folder / f"{path.stem}{end}.pt" for end in itertools.chain([""], map("-{}".format, itertools.count(2))))
        os.replace(path, next(place for place in free if not place.exists()))
    print(f"{sentence} It is set aside in {folder}, and training starts before it.", file=sys.stderr, flush=True)


def step_of(path: Path) -> int | None:
    """The step in the name of a checkpoint; None if the name has none."""
    number = path.stem.partition("-")[2]
    return int(number) if number.isascii() and number.isdigit() else None


def newest_first(folder: Path) -> list[Path]:
    steps = {path: step_of(path) for path in folder.glob("checkpoint-*.pt")}
    return sorted(steps, key=lambda path: (-1 if steps[path] is None else steps[path], path.name), reverse=True)
