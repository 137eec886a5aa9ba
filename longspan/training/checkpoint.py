"""Checkpoints that survive a crash: written beside and renamed, with a hash at the end, the previous one kept.

A file is the saved state followed by its SHA-256. One that was cut short or altered does not match and is skipped
in favour of the previous one.
"""

import hashlib
import io
from pathlib import Path
from typing import Any

import torch

from longspan.core.atomic import write_bytes
from longspan.core.errors import CorruptFile

KEEP = 2
_DIGEST = 32


def save(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write the state after `step` steps and drop all but the newest two."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    path = folder / f"checkpoint-{step:09d}.pt"
    write_bytes(path, payload + hashlib.sha256(payload).digest())
    for old in _newest_first(folder)[KEEP:]:
        old.unlink(missing_ok=True)
    return path


def load(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    payload, digest = content[:-_DIGEST], content[-_DIGEST:]
    if hashlib.sha256(payload).digest() != digest:
        raise CorruptFile(
            f"The checkpoint {path.name} is damaged or cut short; an earlier one is used if there is one."
        )
    return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)


def latest(folder: Path) -> tuple[dict[str, Any] | None, list[Path]]:
    """The newest state that is whole (None when there is none), and the damaged files that were passed over."""
    damaged = []
    for path in _newest_first(folder):
        try:
            return load(path), damaged
        except CorruptFile:
            damaged.append(path)
    return None, damaged


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*.pt"), reverse=True)
