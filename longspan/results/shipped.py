"""What comes with the package: the cards that this project made and its results of `longspan check`, a small file each.

    shipped_cards()                  # cards, as sealed on the machine that made them
    shipped_checks()                 # conformance results
    pack(Path("results"))            # `make generated`

They answer `longspan advise` and `longspan crossover` on a machine where nothing was measured, appear beside own runs
in `longspan report`, and tell boards which mechanisms keep their promises. Files beside the cards (predictions, logs)
are not shipped.
"""

import functools
import json
import lzma
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from longspan.core import atomic
from longspan.results import conformance
from longspan.results.card import Card
from longspan.results.store import Store, newest

CARDS, CHECKS = (Path(__file__).with_name(f"shipped_{what}.json.xz") for what in ("cards", "checks"))


@functools.cache
def shipped_cards() -> tuple[Card, ...]:
    """All of them, ordered by digest; not validated again, since a test checks our own file card by card."""
    return tuple(json.loads(lzma.decompress(CARDS.read_bytes())))


@functools.cache
def shipped_checks() -> tuple[dict[str, Any], ...]:
    """What `longspan check` found of every mechanism, on a CPU and on a GPU."""
    return tuple(json.loads(lzma.decompress(CHECKS.read_bytes())))


def other_runs(cards: Iterable[Card]) -> list[Card]:
    """The runs that come with the package, except those among these cards and those that one of them supersedes."""
    own = {card["sha256"]: card for card in cards}
    shipped = [card for card in shipped_cards() if card["kind"] == "run" and card["sha256"] not in own]
    return [card for card in newest([*own.values(), *shipped]) if card["sha256"] not in own]


def pack(results: Path, folder: Path = CARDS.parent) -> None:
    """Write every sound card and check below `results` into the two files; deterministic."""
    cards = {card["sha256"]: card for place in results.glob("*/cards") for _, card in Store(place).entries()}
    checks, _ = conformance.load(sorted(results.iterdir()))
    for file, content in ((CARDS, [cards[key] for key in sorted(cards)]), (CHECKS, checks)):
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        atomic.write_bytes(folder / file.name, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
