"""The files beside a card: whether they are there, and whether they are those that were written with it."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from longspan.results.card import Card


def faults(path: Path, card: Card) -> Iterator[str]:
    """A sentence for each file of the card at `path` that is missing or has changed."""
    for key, name in card["files"].items():
        file, wanted = path.with_name(name), card.get("files_sha256", {}).get(key)
        if not file.is_file():
            yield f"{name} is named on the card but is not beside it."
        elif wanted is not None and _sha256(file) != wanted:
            yield f"{name} has changed since the card was written (other sha256)."


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
