"""The code that is timed, as one hash: a measurement is reused only if nothing behind it has changed.

Unlike the identity of a run (`results/code_identity.py`) this is the source itself, kernels included, since a change
that leaves all outputs as they were may still change the speed.
"""

import hashlib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def source_hash(cls: type, parts: Sequence[str]) -> str:
    """Of the mechanism's file, and of the parts (files or folders) of the package that its speed depends on."""
    digest = hashlib.sha256(inspect.getsource(sys.modules[cls.__module__]).encode())
    for part in parts:
        place = PACKAGE / part
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(path.read_bytes())
    return digest.hexdigest()
