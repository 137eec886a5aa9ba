"""Ours beside theirs: every number that a paper prints and that cards have too, as a pair.

of_finding(answer("gap", evidence), values=("Train", "Test"))       # Pair("Softmax", "longspan · full", "69.45 / ...
of_board(view)                                                      # every cell that has a published counterpart
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from longspan import published
from longspan.analysis.finding import Finding
from longspan.published.index_constants import index_constants
from longspan.results import catalogue
from longspan.results.board_table import cell_text, paper_text
from longspan.results.board_types import Board, BoardCell

PAPERS = ("published", "CAB, figure")  # how the origin of a paper's row begins
BETWEEN = " / "
WHOLE = ", whole layer"


@dataclass(frozen=True)
class Pair:
    """One thing as a paper has it and as the cards have it; `where` says under which rules ours was made."""

    what: str
    where: str
    theirs: str
    ours: str


@cache
def mechanisms() -> dict[str, str]:
    """Every title that a mechanism has, here or in a paper, with its name here."""
    found = {entry["title"]: entry["name"] for entry in catalogue.read(catalogue.SHIPPED)["attentions"]}
    tables = [*map(published.load, published.names()), *map(published.measured, published.names("measured"))]
    for table in (*tables, *map(published.measured, published.names("figure"))):
        found |= {row.title: row.mechanism for row in table.rows if row.mechanism}
    return found


def mechanism_of(title: str) -> str:
    """The name of a mechanism by any of its titles, without its options.

    >>> mechanism_of("Linear Trans."), mechanism_of("Linear Transformer"), mechanism_of("vanilla"), mechanism_of("Mine")
    ('linear', 'linear', 'softmax', 'Mine')
    """
    bare = title.removesuffix(WHOLE).partition(" (")[0]
    return mechanisms().get(bare, bare)


def of_finding(
    finding: Finding,
    values: Sequence[str],
    *,
    by: Sequence[str] = (),
    name: str = "Mechanism",
    origin: str = "From",
) -> list[Pair]:
    """Own rows beside the published row of the same mechanism, and of the same `by`; columns are named by titles."""
    titles = [column.title for column in finding.columns]
    texts = [dict(zip(titles, row, strict=True)) for row in finding.texts()]

    def key(row: dict[str, str]) -> tuple[str, ...]:
        return (mechanism_of(row.get(name, "")), *(row[title] for title in by))

    printed = {key(row): row for row in texts if row[origin].startswith(PAPERS)}
    pairs = []
    for row in texts:
        if not row[origin].startswith(PAPERS) and (theirs := printed.get(key(row))):
            what = ", ".join(word for word in (row.get(name, ""), *(row[title] for title in by)) if word)
            both = [BETWEEN.join(one[value] for value in values) for one in (theirs, row)]
            pairs.append(Pair(what, row[origin], *both))
    return pairs


def of_board(view: Board) -> Iterator[Pair]:
    """Cells of own runs that a paper has too, under whatever rules ours were made."""
    where = view.title.partition(" · ")[2]
    for row in (*view.rows, *view.free):
        for column, cell in row.cells.items():
            theirs = _printed(view, row.mechanism, row.counterpart, column)
            if theirs and cell.status == "ok":
                yield Pair(f"{row.title}, {_heading(view, column)}", where, theirs, _own(view, cell, column))


def _heading(view: Board, column: str) -> str:
    """Titles of a suite's measures name the metric; single tasks are scored by several."""
    measure = view.suite.measure(column)
    named = view.suite.measures or measure.metric == "accuracy"
    return measure.title if named else f"{measure.title}, {measure.metric.upper()}"


def _own(view: Board, cell: BoardCell, column: str) -> str:
    """The text of a cell without the leading mark, which has a meaning only in a column of a board."""
    return cell_text(view, cell, column=column).rstrip(" ●")


def _printed(view: Board, mechanism: str, counterpart: str | None, column: str) -> str:
    """The cell of the same attention in the table on the board, else in CAB's table of the pattern."""
    for row in view.published:
        if row.title == counterpart and row.scores.get(column) is not None:
            return paper_text(view, row, column)
    known = index_constants().patterns.get(view.pattern or "")
    if view.published or known is None or not view.suite.measures:
        return ""
    found = published.measured(known.table).counterpart(mechanism)
    return "" if found is None else found.printed.get(column, "")


def of_columns(finding: Finding, theirs: str, ours: str, verdict: str, what: Sequence[str]) -> list[Pair]:
    """Rows that have the printed number in one column and ours in another, where the two are comparable: elsewhere
    the column of the verdict has a dash."""
    titles = [column.title for column in finding.columns]
    rows = [dict(zip(titles, row, strict=True)) for row in finding.texts()]
    return [
        Pair(", ".join(row[title] for title in what), row.get("From", ""), row[theirs], row[ours])
        for row in rows
        if "–" not in (row[theirs], row[ours], row[verdict])
    ]
