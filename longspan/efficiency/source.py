"""The very code that is timed, as one hash: a number is taken from disk only when nothing behind it has changed."""

import hashlib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def source_hash(cls: type, parts: Sequence[str]) -> str:
    """Of the mechanism's file, and of the parts (files or folders) of the package that lie below and around it."""
    digest = hashlib.sha256(inspect.getsource(sys.modules[cls.__module__]).encode())
    for part in parts:
        place = PACKAGE / part
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(path.read_bytes())
    return digest.hexdigest()
