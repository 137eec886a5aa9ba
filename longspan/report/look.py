"""How mechanisms are drawn: each has one colour, one dash and one symbol on all pages and in all figures.

The colour belongs to the mechanism, not to the page: it follows from the order of the shipped catalogue, by family, so
that neighbours in a small plot differ. Rows of one mechanism with other options share its colour and differ in dash and
symbol.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from longspan.core.printable import shown
from longspan.results import catalogue

HUES = 11  # --hue-1 ... --hue-11 in site.css
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


def base_name(mechanism: str) -> str:
    """`performer(features=64)` is `performer`; a plug-in keeps its path. The same for the name as a board shows it."""
    name = shown(mechanism)
    return name.split("(", 1)[0].strip() or name


def looks(mechanisms: Iterable[str]) -> dict[str, Look]:
    """A look for each mechanism string and for the mechanism without options; those not in the catalogue come last."""
    names = {shown(mechanism) for mechanism in mechanisms} | {BASELINE}
    names |= {base_name(name) for name in names}
    order = [*_catalogued(), *sorted({base_name(name) for name in names} - {*_catalogued(), BASELINE})]
    place = {base: index for index, base in enumerate(order)}
    found: dict[str, Look] = {}
    counted: dict[str, int] = {}
    for name in sorted(names, key=lambda name: (base_name(name) != name, name)):
        base = base_name(name)
        variant = counted[base] = counted.get(base, -1) + 1
        hue, turn = (0, 0) if base == BASELINE else (1 + place[base] % HUES, place[base] // HUES)
        found[name] = Look(hue, turn + variant)
    return found


def family_of(group: str) -> str:
    """The family of a mechanism string; empty for what the shipped catalogue does not know."""
    return _families().get(base_name(group), "")


@cache
def _families() -> dict[str, str]:
    return {entry["name"]: entry["family"] for entry in catalogue.read(catalogue.SHIPPED)["attentions"]}


@cache
def _catalogued() -> tuple[str, ...]:
    """Names in the order of their looks: papers before twins, family by family."""
    entries = catalogue.read(catalogue.SHIPPED)["attentions"]
    entries.sort(key=lambda entry: (entry["fidelity"], entry["family"], entry["name"]))
    return tuple(entry["name"] for entry in entries if entry["name"] != BASELINE)
