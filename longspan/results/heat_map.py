"""Scores on a grid, as a card has them by kind: `accuracy_1024_0.5` is the one at 1,024 bytes and depth 0.5.

grid = heat_map(card)
grid.rows, grid.columns, grid.values          # depths, lengths, fractions; None where there is no grid
"""

import re
from dataclasses import dataclass

from longspan.results.card import Card

SHADES = " ░▒▓█"
KIND = re.compile(r"(\d+)_(\d*\.?\d+)")


@dataclass(frozen=True)
class HeatMap:
    """Fractions by depth (rows) and length (columns); a cell that was not measured is None."""

    rows: tuple[float, ...]
    columns: tuple[int, ...]
    values: tuple[tuple[float | None, ...], ...]

    def lines(self) -> list[list[str]]:
        """A heading and a line for each depth: a shade and the percentage."""
        cells = [[_cell(value) for value in row] for row in self.values]
        named = [[f"{depth:g}", *row] for depth, row in zip(self.rows, cells, strict=True)]
        return [["depth", *(f"{length:,}" for length in self.columns)], *named]


def heat_map(card: Card) -> HeatMap | None:
    """The grid of a run of `needle`; None where a card has fewer than two lengths or depths."""
    score = card["score"]
    if not score or card["task"].partition("@")[0] != "needle":
        return None
    found: dict[tuple[float, int], float] = {}
    for name, metric in card["metrics"][score["split"]].items():
        if match := KIND.fullmatch(name.removeprefix(f"{score['name']}_")):
            found[float(match[2]), int(match[1])] = metric["value"]
    depths, lengths = (tuple(sorted({key[place] for key in found})) for place in (0, 1))
    if len(depths) < 2 or len(lengths) < 2:
        return None
    rows = tuple(float(depth) for depth in depths)
    columns = tuple(int(length) for length in lengths)
    return HeatMap(rows, columns, tuple(tuple(found.get((d, n)) for n in columns) for d in rows))


def _cell(value: float | None) -> str:
    if value is None:
        return "–"
    shade = SHADES[min(len(SHADES) - 1, max(0, round(value * (len(SHADES) - 1))))]
    return f"{shade * 2} {100 * value:.0f} %"
