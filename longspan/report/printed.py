"""The papers' tables as the site shows them: every number as printed, and beside it what is wrong with it.

leaderboard("lra-v1").notes          # printed errors, a sentence each
measurements("lra-training-speed").flags_at("Linformer", "speed_1k")
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby

from longspan import published as papers
from longspan import suites
from longspan.analysis.efficiency_table import length_text
from longspan.published import Flag, MeasuredRow, MeasuredTable, PublishedRow, PublishedTable
from longspan.published.measurement import MeasuredColumn
from longspan.results.published_rows import ColumnSpread, Paper, paper_of, paper_rows
from longspan.suites import Suite

KINDS = {  # of flags, as `longspan.published.measurement` tells them apart
    "error": "no rounding explains it",
    "rounding": "the printed digits give another quotient, the measured ones may not",
    "doubt": "it contradicts another cell or the text",
}


# --------------------------------------------------------------------------------------------------------- leaderboards


@dataclass(frozen=True)
class ScoreTable:
    """A leaderboard, or the records of later papers, with the averages of its suite."""

    table: PublishedTable
    suite: Suite
    paper: Paper

    @property
    def own(self) -> list[PublishedRow]:
        """Chance and what the authors ran; all rows of a table of records."""
        return [row for row in self.table.rows if row.kind != "external"]

    @property
    def external(self) -> list[PublishedRow]:
        return [row for row in self.table.rows if row.kind == "external"]

    @property
    def notes(self) -> tuple[str, ...]:
        return self.paper.flags

    def summary_of(self, column: str) -> ColumnSpread | str | None:
        """Mean and deviation over the models of a task or an average; FAIL where a paper prints that."""
        return self.paper.summary.get(column)


def leaderboard(name: str) -> ScoreTable:
    table = papers.load(name)
    suite = suites.get(table.suite)
    paper = paper_of(table, paper_rows(table, suite), suite)
    assert paper is not None, "a table that was loaded has a paper"
    return ScoreTable(table, suite, paper)


def spread_text(spread: ColumnSpread) -> str:
    """At the digits that papers print.

    >>> spread_text(ColumnSpread(mean=0.5238, std=0.0274))
    '52 (2.7)'
    """
    return f"{100 * spread.mean:.0f} ({100 * spread.std:.1f})"


# --------------------------------------------------------------------------------------------------------- measurements


@dataclass(frozen=True)
class ColumnGroup:
    """Neighbouring columns of one quantity: training speed at four lengths."""

    heading: str
    columns: tuple[MeasuredColumn, ...]

    def label(self, column: MeasuredColumn) -> str:
        return column.title if column.length is None else length_text(column.length)


@dataclass(frozen=True)
class MeasuredView:
    """A table of measurements, its columns by quantity, its flags by cell."""

    table: MeasuredTable
    groups: tuple[ColumnGroup, ...]
    flags: Mapping[tuple[str, str], Sequence[Flag]]

    @property
    def has_notes(self) -> bool:
        return any(row.note for row in self.table.rows)

    @property
    def has_gap(self) -> bool:
        return {"train", "test"} <= {column.name for column in self.table.columns}

    def gap(self, row: MeasuredRow) -> str:
        """Training minus test accuracy, at the digits that were printed.

        >>> view = measurements("lra-generalisation")
        >>> view.gap(view.table.row("Linformer"))
        '58.67'
        """
        return str(Decimal(row.printed["train"]) - Decimal(row.printed["test"]))

    def flags_at(self, row: str, column: str) -> Sequence[Flag]:
        return self.flags.get((row, column), ())

    @property
    def kinds(self) -> dict[str, str]:
        """The kinds of flags that the table has, and what they mean."""
        return {kind: words for kind, words in KINDS.items() if any(flag.kind == kind for flag in self.table.flags())}

    def notes(self) -> list[tuple[Flag, str]]:
        """Every flag with the cell it is about, in words."""
        columns = {column.name: column for column in self.table.columns}
        return [(flag, f"{flag.row}, {_words(columns[flag.column])}") for flag in self.table.flags()]


def measurements(name: str) -> MeasuredView:
    table = papers.measured(name)
    flags: dict[tuple[str, str], list[Flag]] = {}
    for flag in table.flags():
        flags.setdefault((flag.row, flag.column), []).append(flag)
    grouped = groupby(table.columns, key=lambda column: (column.quantity, column.unit))
    groups = (ColumnGroup(_heading(quantity, unit), tuple(found)) for (quantity, unit), found in grouped)
    return MeasuredView(table, tuple(groups), flags)


def _heading(quantity: str, unit: str) -> str:
    """
    >>> _heading("memory per device", "GB"), _heading("steps to accuracy", "steps")
    ('Memory per device, GB', 'Steps to accuracy')
    """
    words = quantity if quantity.startswith(unit) else f"{quantity}, {unit}"
    return words[0].upper() + words[1:]


def _words(column: MeasuredColumn) -> str:
    """`training speed at 3K`; a quantity that was measured once is called by its title."""
    return column.title if column.length is None else f"{column.quantity} at {length_text(column.length)}"
