"""The code that is timed, as one hash: a measurement is reused only if nothing behind it has changed.

Unlike the identity of a run (`results/code_identity.py`) this is the source itself, kernels included, since a change
that leaves all outputs as they were may still change the speed.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from longspan.core import plugin_source

PACKAGE = Path(__file__).parents[1]


def source_hash(cls: type, parts: Sequence[str]) -> str:
    """Hash of the mechanism's files and of the parts (files or folders) of the package that its speed depends on."""
    digest = hashlib.sha256(b"".join(plugin_source.sources(cls)))
    for part in parts:
        place = PACKAGE / part
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def timed_code(cls: type, whole: str) -> dict[str, str]:
    """What a card says about the timed code: the hash of all of it, and that of a plug-in by itself."""
    builtin = cls.__module__.startswith("longspan.")
    return {"source_sha256": whole} | ({} if builtin else {"mechanism_sha256": plugin_source.source_hash(cls)})
