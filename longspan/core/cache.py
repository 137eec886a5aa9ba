"""The user's cache of what can be made again: $LONGSPAN_CACHE, else `longspan` in the system's cache."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder, which need not exist; it can be removed without losing anything."""
    if own := os.environ.get("LONGSPAN_CACHE", "").strip():
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME", "").strip() or "~/.cache").expanduser().absolute() / "longspan"
