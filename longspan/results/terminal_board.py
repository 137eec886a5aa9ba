"""A board on a screen: the fullest layout that its width holds, down to 80 columns.

Columns of less importance go first, then the spread over seeds; names are broken, numbers never are.
"""

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longspan.results.board_table import LEADING, NAME, Part, Style, footnotes, parts
from longspan.results.board_types import Board

if TYPE_CHECKING:
    from rich.text import Text

NAME_WIDTH = 24  # a longer name is broken before a column is given up
FULL = Style(words=False)
PLAIN = Style(spread=False, words=False)
SPLIT = Style(spread=False, words=False, joined=False)
TIGHT = Style(spread=False, words=False, joined=False, spaced=False)


@dataclass(frozen=True)
class TerminalLayout:
    """What a screen of some width shows. `without` names columns; `averages` says how many of them stay."""

    style: Style = FULL
    without: tuple[str, ...] = ()
    averages: int | None = None
    gap: int = 2


_NARROW = ("Seeds", "Steps/s", "Parameters")
LAYOUTS = (  # from all there is to what 80 columns hold
    TerminalLayout(),
    TerminalLayout(without=("Parameters",)),
    TerminalLayout(without=("Steps/s", "Parameters")),
    TerminalLayout(without=_NARROW),
    TerminalLayout(without=_NARROW, gap=1),
    TerminalLayout(PLAIN, _NARROW, gap=1),
    TerminalLayout(SPLIT, _NARROW, gap=1),
    TerminalLayout(TIGHT, _NARROW, gap=1),
    TerminalLayout(TIGHT, ("#", *_NARROW), gap=1),
    TerminalLayout(TIGHT, ("#", *_NARROW), averages=1, gap=1),
)


def draw(view: Board, width: int, colour: bool = False) -> str:
    """The board as text for a screen of that many columns."""
    from longspan.core.screen import Screen

    layout, tables = _fitting(view, width)
    buffer = io.StringIO()
    console = Screen(file=buffer, width=width, force_terminal=colour, no_color=not colour)
    for part in tables:
        for line in _drawn(part, width, layout.gap):
            console.print(line, soft_wrap=True)  # a screen below 80 columns breaks lines, and cuts no number
        console.print()
    for note in [*_left_out(view, layout, tables), *footnotes(view, layout.style)]:
        console.print(note, markup=False, style="dim" if colour else None)
    return buffer.getvalue()


def _fitting(view: Board, width: int) -> tuple[TerminalLayout, list[Part]]:
    """The fullest layout that the width holds, and its tables."""
    for layout in LAYOUTS:
        averages = view.suite.averages[layout.averages :] if layout.averages is not None else ()
        hidden = (*layout.without, *(average.title for average in averages))
        tables = [part.without(hidden) for part in parts(view, layout.style)]
        if layout is LAYOUTS[-1] or all(_needed(part, layout.gap) <= width for part in tables):
            return layout, tables
    raise AssertionError("the last layout is taken whatever its width")


def _widths(part: Part) -> list[int]:
    from rich.cells import cell_len

    lines = [part.columns, *(line.texts for section in part.sections for line in section.lines)]
    return [max(cell_len(texts[i]) for texts in lines) for i in range(len(part.columns))]


def _needed(part: Part, gap: int) -> int:
    widths = _widths(part)
    name = part.columns.index(NAME)
    widths[name] = min(widths[name], NAME_WIDTH)
    return sum(widths) + gap * (len(widths) - 1)


def _drawn(part: Part, width: int, gap: int) -> "Iterator[Text]":
    """The lines of a table. Only names are broken, numbers never."""
    from rich.text import Text

    widths = _widths(part)
    name = part.columns.index(NAME)
    others = sum(widths) - widths[name] + gap * (len(widths) - 1)
    widths[name] = min(widths[name], max(NAME_WIDTH if width < others else width - others, 8))
    yield Text(part.title, style="bold")
    yield from _row(part.columns, widths, name, gap, "bold")
    yield Text("─" * min(width, sum(widths) + gap * (len(widths) - 1)))
    for index, section in enumerate(part.sections):
        if section.heading:
            yield from ([Text()] if index else [])
            yield Text(section.heading, style="italic")
        for line in section.lines:
            style = {"own": "", "difference": "dim italic", "published": "dim", "summary": "italic"}[line.kind]
            yield from _row(line.texts, widths, name, gap, style)


def _row(texts: Sequence[str], widths: Sequence[int], name: int, gap: int, style: str) -> "Iterator[Text]":
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    pieces = _broken(texts[name], widths[name])
    for number, piece in enumerate(pieces):
        line = Text()
        for index, text in enumerate(texts):
            shown = piece if index == name else text if number == 0 else ""
            room = widths[index]
            padded = set_cell_size(shown, room) if index == name else " " * (room - cell_len(shown)) + shown
            line.append(" " * gap if index else "")
            line.append(padded, style="bold green" if LEADING in shown else style)
        line.rstrip()
        yield line


def _broken(name: str, width: int) -> list[str]:
    """A name in pieces at most `width` wide, broken between words: at spaces, and within options after punctuation."""
    from rich.cells import cell_len

    pieces = [""]
    for word in re.findall(r"\[?[^\s(\[,=_/]+[(,=_/]*\s*|[\s(\[,=_/]+", name):
        if pieces[-1] and cell_len(pieces[-1] + word.rstrip()) > width:
            pieces.append("")
        for letter in word:
            if cell_len(pieces[-1] + letter) > width and letter != " ":
                pieces.append("")
            pieces[-1] += letter
    return [piece.rstrip() for piece in pieces]


def _left_out(view: Board, layout: TerminalLayout, tables: Sequence[Part]) -> list[str]:
    """A line on what was left out at this width."""
    full = [name for part in parts(view) for name in part.columns]
    here = {name for part in tables for name in part.columns}
    gone = [name for name in dict.fromkeys(full) if name not in here]
    spread = any(
        cell.std is not None for row in (*view.rows, *view.free, *view.fidelity) for cell in row.cells.values()
    )
    if spread and not layout.style.spread:
        gone.append("the spread over seeds")
    return [f"Left out at this width: {', '.join(gone)}; --format md has it all."] if gone else []
