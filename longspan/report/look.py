"""How mechanisms are drawn: each has one colour, one dash and one symbol on all pages."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from longspan.results.board import shown

HUES = 7  # --hue-1 ... --hue-7 in site.css, safe for the common forms of colour blindness
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "star")
BASELINE = "softmax"  # drawn in the colour of the text


@dataclass(frozen=True)
class Look:
    """How one mechanism is drawn everywhere."""

    hue: int  # 0 is the colour of the text
    turn: int  # how often all hues were used before

    @property
    def colour(self) -> str:
        return f"--hue-{self.hue}"

    @property
    def dash(self) -> str:
        return DASHES[self.turn % len(DASHES)]

    @property
    def symbol(self) -> str:
        return SYMBOLS[self.turn % len(SYMBOLS)]

    @property
    def point(self) -> dict[str, Any]:
        return {"colour": self.colour, "symbol": self.symbol}

    @property
    def line(self) -> dict[str, Any]:
        return {"colour": self.colour, "symbol": self.symbol, "dash": self.dash}


def looks(mechanisms: Iterable[str], then: Iterable[str] = ()) -> dict[str, Look]:
    """A look for each mechanism string, the same for the same set of them; those of `then` get what is left."""
    others = sorted({shown(mechanism) for mechanism in mechanisms} - {BASELINE})
    others += sorted({shown(mechanism) for mechanism in then} - {BASELINE, *others})
    return {BASELINE: Look(0, 0)} | {name: Look(1 + i % HUES, i // HUES) for i, name in enumerate(others)}
