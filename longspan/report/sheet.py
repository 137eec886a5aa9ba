"""A sheet: a table of a paper as plain texts, whatever it was made from, which is then written as LaTeX.

    of_finding(finding), *of_board(view)        # sheets
    written(sheet, "lra-table-3")               # a booktabs table with its caption, label and notes

A sheet that fits on a page floats; a longer one breaks across pages. Columns of words are wrapped where the lines would
be wider than the page, then the type gets smaller, then the page is set in landscape.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from longspan.analysis.finding import Finding
from longspan.results.board_table import NAME, Style, footnotes, parts
from longspan.results.board_types import Board
from longspan.results.latex import escaped

SIZES = (("small", 86), ("footnotesize", 96), ("scriptsize", 111))  # letters in a line of 16 cm
TURNED = 1.45  # how much longer a line is on a landscape page
PORTRAIT_CM, SEPARATION = 16.0, 1.6  # the width of a line; the letters that the space between two columns takes
HEIGHTS = {"small": 1.0, "footnotesize": 0.87, "scriptsize": 0.73, "tiny": 0.55}  # of a line
NARROWEST = 11  # letters in the narrowest column of wrapped words
COSTS = ("Steps/s", "Parameters")  # which a paper prints elsewhere
COSTS_NOTE = "Steps per second and parameters"
MARKED = Style(words=False)  # printed errors as a mark in the cell, in words below
MINUS = re.compile(r"(?<![\w.])-(?=\d)")
PAGE = 44  # lines of a table that fit on a page


@dataclass(frozen=True)
class Sheet:
    """`lines` have as many texts as there are `heads`, or one, which is a heading above the lines that follow."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    words: frozenset[int] = frozenset({0})  # columns that hold words, which stand on the left and may be wrapped
    notes: tuple[str, ...] = ()


def of_finding(finding: Finding) -> Sheet:
    """What all rows have in common is stated once, below."""
    seen = finding.condensed()
    words = frozenset(place for place, column in enumerate(seen.columns) if column.kind == "text")
    heads = tuple(column.title for column in seen.columns)
    return Sheet(f"{seen.title}. {seen.lede}", heads, tuple(map(tuple, seen.texts())), words, seen.notes)


def of_board(view: Board) -> list[Sheet]:
    """A sheet for each table of a board; the notes stand below the last."""
    found = [part.without(COSTS) for part in parts(view, MARKED)]
    said = tuple(note for note in footnotes(view, MARKED) if not note.startswith(COSTS_NOTE))
    sheets = []
    for part in found:
        lines: list[tuple[str, ...]] = []
        for section in part.sections:
            lines += [(section.heading,)] * bool(section.heading) + [line.texts for line in section.lines]
        title = part.title if part is found[0] else f"{view.title}: {part.title}"
        words = frozenset({part.columns.index(NAME)})
        notes = said if part is found[-1] else ()
        sheets.append(Sheet(title, part.columns, tuple(lines), words, notes))
    return sheets


# ------------------------------------------------------------------------------------------------------------ as LaTeX


def written(sheet: Sheet, label: str) -> str:
    """The sheet as LaTeX for the packages array, booktabs, longtable and pdflscape."""
    fit = _fit(sheet)
    head = " & ".join(_head(text, place in sheet.words) for place, text in enumerate(sheet.heads)) + r" \\"
    body = [_line(line, sheet) for line in sheet.lines]
    caption = rf"\caption{{{escaped(sheet.title)}}}\label{{tab:{label}}}"
    words = " ".join(map(escaped, sheet.notes))
    notes = [rf"\par\smallskip{{\scriptsize\raggedright {words}\par}}"] * bool(words)
    style = [rf"\{fit.size}", r"\setlength{\tabcolsep}{3pt}"]
    if fit.height > PAGE * (0.62 if fit.turned else 1.0):
        top = [
            rf"\begin{{longtable}}{{{fit.columns}}}",
            caption + r" \\",
            r"\toprule",
            head,
            r"\midrule",
            r"\endfirsthead",
        ]
        again = [r"\toprule", head, r"\midrule", r"\endhead", r"\bottomrule", r"\endlastfoot"]
        table = [r"\begingroup", *style, *top, *again, *body, r"\end{longtable}", *notes, r"\endgroup"]
    else:
        rows = [r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
        tabular = [rf"\begin{{tabular}}{{{fit.columns}}}", *rows, r"\end{tabular}"]
        table = [r"\begin{table}", r"\centering", *style, caption, *tabular, *notes, r"\end{table}"]
    if fit.turned:
        table = [r"\begin{landscape}", *table, r"\end{landscape}"]
    return "\n".join(table) + "\n"


def _head(text: str, left: bool) -> str:
    """In bold, a line for each word, aligned at the bottom with its neighbours."""
    words = [rf"\textbf{{{escaped(word)}}}" for word in text.split()]
    stacked = r" \\ ".join(words)
    return stacked if len(words) < 2 else rf"\shortstack[{'l' if left else 'r'}]{{{stacked}}}"


def _line(texts: Sequence[str], sheet: Sheet) -> str:
    """A minus sign is longer than the hyphen that stands for it in plain text."""
    columns = len(sheet.heads)
    if len(texts) == 1 < columns:
        return rf"\addlinespace \multicolumn{{{columns}}}{{l}}{{\emph{{{escaped(texts[0])}}}}} \\"
    return " & ".join(escaped(t if i in sheet.words else MINUS.sub("−", t)) for i, t in enumerate(texts)) + r" \\"


@dataclass(frozen=True)
class _Fit:
    size: str
    turned: bool
    columns: str
    height: float  # in lines of the larger type


def _fit(sheet: Sheet) -> _Fit:
    """The largest type in which nothing is wrapped, else the shortest table with wrapped words; landscape if needed."""
    full = [line for line in sheet.lines if len(line) == len(sheet.heads)]
    natural = [max([_head_width(head), *(len(line[i]) for line in full)]) for i, head in enumerate(sheet.heads)]
    least = [_narrowest(sheet, full, i, wide) for i, wide in enumerate(natural)]
    between = SEPARATION * len(natural)
    for size, room in SIZES:
        if sum(natural) + between <= room:
            return _wrapped(sheet, full, natural, natural, size, room - between)
    for turned in (False, True):
        rooms = [(size, room * (TURNED if turned else 1) - between) for size, room in SIZES[1:]]
        fits = [_wrapped(sheet, full, natural, least, size, room, turned) for size, room in rooms if sum(least) <= room]
        if fits:
            return min(fits, key=lambda fit: fit.height)
    return _wrapped(sheet, full, natural, least, "tiny", SIZES[-1][1] * TURNED - between, True)


def _head_width(head: str) -> int:
    """A head has a line for each of its words."""
    return max(map(len, head.split()), default=0)


def _narrowest(sheet: Sheet, full: Sequence[Sequence[str]], place: int, natural: int) -> int:
    """As narrow as the longest word allows, but never so narrow that a sentence becomes a column of syllables."""
    if place not in sheet.words or natural <= NARROWEST:
        return natural
    longest = max((len(word) for line in full for word in line[place].split()), default=0)
    return min(natural, max(longest + 1, NARROWEST, round(natural**0.5 * 2.2)))


def _wrapped(
    sheet: Sheet,
    full: Sequence[Sequence[str]],
    natural: list[int],
    widths: list[int],
    size: str,
    room: float,
    turned: bool = False,
) -> _Fit:
    """Room that is left goes to the wrapped columns, in proportion to what they lack."""
    lacking = [wide - narrow for wide, narrow in zip(natural, widths, strict=True)]
    spare, total = max(0.0, room - sum(widths)), sum(lacking)
    share = min(1.0, spare / total) if total else 0.0
    final = [narrow + share * lack for narrow, lack in zip(widths, lacking, strict=True)]
    cm = PORTRAIT_CM * (TURNED if turned else 1) / (room + SEPARATION * len(widths))
    columns = []
    for place, (wide, width) in enumerate(zip(natural, final, strict=True)):
        side = "l" if place in sheet.words else "r"
        wraps = width < wide - 0.5
        columns.append(rf">{{\raggedright\arraybackslash}}p{{{cm * width:.2f}cm}}" if wraps else side)
    deep = [max(-(-len(text) // max(1, int(width))) for text, width in zip(line, final, strict=True)) for line in full]
    headings = 1.3 * (len(sheet.lines) - len(full)) + max((len(head.split()) for head in sheet.heads), default=1)
    return _Fit(size, turned, "".join(columns), (sum(deep) + headings) * HEIGHTS[size])
