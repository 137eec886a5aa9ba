"""A table of measurements as a paper prints it: speed, memory, steps or accuracies, with the ratios printed beside.

Every cell is kept as printed (`9.2 (1.1x)`). A ratio is recomputed from the printed values of its column; `flags` names
those that are not the rounded quotient, and the cells that cannot be right for another reason.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from longspan.core.errors import UnknownName, did_you_mean

CELL = re.compile(r"(?P<value>-?\d+(?:\.\d+)?)(?: \((?P<ratio>\d+(?:\.\d+)?)x\))?")


@dataclass(frozen=True)
class MeasuredColumn:
    name: str
    title: str
    quantity: str
    unit: str
    length: int | None = None  # tokens


@dataclass(frozen=True)
class MeasuredRow:
    """One line: the cells as printed, by column. `printed_title` is how this table writes the model's name.

    A column that is in neither `printed` nor `failed` was not run.
    """

    title: str
    printed_title: str
    printed: Mapping[str, str]
    mechanism: str | None = None
    note: str = ""
    failed: tuple[str, ...] = ()  # the columns in which a dash stands for a failed run
    elsewhere: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # what another source has, and which

    def value(self, column: str) -> float:
        return float(_parts(self.printed[column])[0])

    def known(self, column: str) -> float:
        """The value of the other source where there is one: it has more digits, or others confirm it."""
        return float(self.elsewhere[column][0]) if column in self.elsewhere else self.value(column)

    def is_contradicted(self, column: str) -> bool:
        """Whether another source has a value that does not read as printed, however it is rounded."""
        if column not in self.elsewhere:
            return False
        printed, other = _parts(self.printed[column])[0], self.elsewhere[column][0]
        return abs(Decimal(printed) - Decimal(other)) >= 2 * half_unit(printed)

    def printed_ratio(self, column: str) -> float | None:
        ratio = _parts(self.printed[column])[1]
        return None if ratio is None else float(ratio)


@dataclass(frozen=True)
class Flag:
    """Something wrong with a printed cell.

    `kind`: error (no rounding explains it), rounding (the printed digits give another quotient, the unrounded values
    may not) or doubt (it contradicts another cell or the text).
    """

    row: str
    column: str
    kind: Literal["error", "rounding", "doubt"]
    printed: str
    why: str
    recomputed: float | None = None  # the ratio, where it is the ratio that is off


@dataclass(frozen=True)
class MeasuredTable:
    name: str
    title: str
    suite: str
    paper: str
    source: str
    note: str
    columns: tuple[MeasuredColumn, ...]
    rows: tuple[MeasuredRow, ...]
    reference: str | None  # the row that ratios are relative to
    doubts: tuple[Flag, ...]
    period: str = ""
    pattern: str = "noncausal_self"

    def row(self, title: str) -> MeasuredRow:
        known = {row.title: row for row in self.rows}
        if title not in known:
            raise UnknownName(f"{self.name} has no row {title!r}.{did_you_mean(title, known)}")
        return known[title]

    def counterpart(self, mechanism: str) -> MeasuredRow | None:
        """The row of the same attention, by the name it has here; a twin (`lra_local`) gets that of its original."""
        name = mechanism.split("(", 1)[0].strip().removeprefix("lra_")
        return next((row for row in self.rows if row.mechanism == name), None) if name else None

    def column(self, quantity: str, length: int) -> MeasuredColumn | None:
        """The column of a quantity ("training speed") at a length; None where nothing was measured there."""
        return next((c for c in self.columns if (c.quantity, c.length) == (quantity, length)), None)

    def ratio(self, title: str, column: str) -> float | None:
        """The quotient of the printed values of this row and the reference row; None in a table without ratios."""
        return (
            None if self.reference is None else self.row(title).value(column) / self.row(self.reference).value(column)
        )

    def flags(self) -> list[Flag]:
        """Every printed ratio that is not its quotient, then what another source contradicts, then doubtful cells."""
        return [*self._wrong_ratios(), *self._contradictions(), *self.doubts]

    def _contradictions(self) -> Iterator[Flag]:
        for row in self.rows:
            for column, (value, source) in row.elsewhere.items():
                if row.is_contradicted(column):
                    yield Flag(row.title, column, "doubt", row.printed[column], f"{value} is {source}")

    def _wrong_ratios(self) -> Iterator[Flag]:
        for row in self.rows:
            for column, cell in row.printed.items():
                value, ratio = _parts(cell)
                if ratio is None or self.reference is None:
                    continue
                base = _parts(self.row(self.reference).printed[column])[0]
                quotient = Decimal(value) / Decimal(base)
                if abs(quotient - Decimal(ratio)) <= half_unit(ratio):
                    continue
                low = (Decimal(value) - half_unit(value)) / (Decimal(base) + half_unit(base)) - half_unit(ratio)
                high = (Decimal(value) + half_unit(value)) / (Decimal(base) - half_unit(base)) + half_unit(ratio)
                kind = "rounding" if low <= Decimal(ratio) <= high else "error"
                why = f"{value} / {base} is {quotient:.{len(ratio.partition('.')[2])}f}, {ratio} is printed"
                yield Flag(row.title, column, kind, cell, why, float(quotient))


def read_measurement(content: Mapping[str, Any]) -> MeasuredTable:
    """A table from the content of its JSON file."""
    rows = tuple(
        MeasuredRow(
            title=row["title"],
            printed_title=row.get("printed_title", row["title"]),
            printed=row["printed"],
            mechanism=row.get("mechanism"),
            note=row.get("note", ""),
            failed=tuple(row.get("failed", ())),
            elsewhere={name: (other["value"], other["source"]) for name, other in row.get("elsewhere", {}).items()},
        )
        for row in content["rows"]
    )
    cells = {(row.title, column): cell for row in rows for column, cell in row.printed.items()}
    return MeasuredTable(
        **{key: content[key] for key in ("name", "title", "suite", "paper", "source", "note")},
        columns=tuple(MeasuredColumn(**column) for column in content["columns"]),
        rows=rows,
        reference=content.get("reference"),
        **{key: content[key] for key in ("period", "pattern") if key in content},
        doubts=tuple(
            Flag(doubt["row"], doubt["column"], "doubt", cells[doubt["row"], doubt["column"]], doubt["why"])
            for doubt in content.get("doubts", ())
        ),
    )


def _parts(cell: str) -> tuple[str, str | None]:
    """`9.2 (1.1x)` is ("9.2", "1.1")."""
    match = CELL.fullmatch(cell)
    assert match, f"the printed cell {cell!r} is neither a number nor a number with a ratio"
    return match["value"], match["ratio"]


def half_unit(printed: str) -> Decimal:
    """Half a unit of the last printed digit: how far rounding can have moved the number."""
    return Decimal(5).scaleb(-1 - len(printed.partition(".")[2]))
