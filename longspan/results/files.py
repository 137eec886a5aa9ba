"""The files beside a card: log, predictions, samples and weights, and whether they are the ones it was sealed with."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longspan.core import mirror

Card = dict[str, Any]
WEIGHTS = "weights"
ALL_WEIGHTS = (WEIGHTS, "weights_at")  # those reported, and those selected up to an earlier step
SAMPLES = "samples"
BULKY = (*ALL_WEIGHTS, SAMPLES)


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def faults(path: Path, card: Card, *, bulky: bool = True) -> Iterator[str]:
    """A sentence for each file of the card at `path` that is missing, or whose hash does not match the card.

    Weights and samples are large and no number on a card needs them: with `bulky=False` they may be absent, never
    different.
    Cards written before hashes were recorded only have names to check.
    """
    recorded = card.get("files_sha256", {})
    for what, name in card["files"].items():
        if fault := fault_of(path.parent / name, recorded.get(what), absent=what in BULKY and not bulky):
            yield fault
    if unnamed := [what for what in recorded if what not in card["files"]]:
        yield f"the card has hashes of files it does not name: {', '.join(unnamed)}."


def fault_of(path: Path, recorded: str | None, *, absent: bool = False) -> str | None:
    """What is wrong with one file, in a sentence; None if it is sound, or absent where that is allowed."""
    mirror.pull(path)
    if not path.exists():
        return None if absent else f"{path.name} is missing beside the card."
    if not path.is_file():
        return f"{path.name} is not a plain file."
    if recorded is None:
        return None
    try:
        found = digest(path)
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror})."
    if found != recorded:
        return f"{path.name} was changed after the run: its sha256 begins {found[:12]}, the card says {recorded[:12]}."
    return None
