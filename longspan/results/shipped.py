"""The cards that come with the package: those that this project measured, packed into one small file.

    shipped_cards()                  # a list of cards, as sealed on the machine that made them
    pack([Path("results/h200/cards")])      # `make generated`

They answer `longspan advise` and `longspan crossover` on a machine where nothing was measured. Files beside the cards
(predictions, logs) are not shipped.
"""

import functools
import json
import lzma
from collections.abc import Iterable
from pathlib import Path

from longspan.core import atomic
from longspan.results.card import Card
from longspan.results.store import Store

PACK = Path(__file__).with_name("shipped_cards.json.xz")


@functools.cache
def shipped_cards() -> tuple[Card, ...]:
    """All of them, in the order of their names; read from our own file, which a test has checked card by card."""
    return tuple(json.loads(lzma.decompress(PACK.read_bytes())))


def pack(folders: Iterable[Path], target: Path = PACK) -> Path:
    """Write every sound card below the folders into one file; the same cards give the same bytes."""
    found = {card["sha256"]: card for folder in folders for _, card in Store(folder).entries()}
    text = json.dumps([found[key] for key in sorted(found)], sort_keys=True, separators=(",", ":"))
    atomic.write_bytes(target, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    return target
