"""A finding: the answer to one question as a table with notes, and what its figure is drawn from."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from longspan.core.printable import printable

Kind = Literal["text", "percent", "number", "count", "fit", "signed"]
BETWEEN = " · "  # the parts of a text


@dataclass(frozen=True)
class Column:
    """`percent` columns hold fractions, `fit` columns coefficients of determination, `signed` columns z-scores."""

    title: str
    kind: Kind = "text"
    hint: str = ""
    context: bool = False  # worth a column only where its rows differ


@dataclass(frozen=True)
class Finding:
    """`figure` is a small dataclass of the question's own file; None where there is nothing to draw."""

    question: str
    title: str
    lede: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    notes: tuple[str, ...] = ()
    figure: Any = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        names = [column.title for column in self.columns]
        return {
            "question": self.question,
            "title": self.title,
            "lede": self.lede,
            "rows": [dict(zip(names, row, strict=True)) for row in self.rows],
            "notes": list(self.notes),
        }

    def condensed(self) -> "Finding":
        """The same for reading: what all rows of a context column share is moved to a note below the table."""
        said, kept = [], []
        for place, column in enumerate(self.columns):
            own = [row[place] for row in self.rows]
            if column.context and len(set(own)) == 1:
                alike = "" if own[0] is None else text(own[0], column.kind)
            else:
                alike, own = common_parts(own) if column.context else ("", own)
                kept.append((column, own))
            if alike:
                said.append(f"{column.title}: {alike}")
        return replace(
            self,
            columns=tuple(column for column, _ in kept),
            rows=tuple(zip(*(values for _, values in kept), strict=True)),
            notes=((f"Throughout: {'; '.join(said)}.",) if said else ()) + self.notes,
        )

    def texts(self) -> list[list[str]]:
        """The rows as formatted text."""
        return [
            [text(value, column.kind) for value, column in zip(row, self.columns, strict=True)] for row in self.rows
        ]


def common_parts(values: list[Any]) -> tuple[str, list[Any]]:
    """The parts that all values share, and each value without them.

    >>> common_parts(["GPU · bfloat16 · batch 4", "GPU · float32 · batch 4"])
    ('GPU · batch 4', ['bfloat16', 'float32'])
    >>> common_parts(["NS", "CS"])
    ('', ['NS', 'CS'])
    """
    split = [value.split(BETWEEN) if isinstance(value, str) else [] for value in values]
    if len({len(parts) for parts in split}) != 1:
        return "", values
    alike = [len(set(parts)) == 1 for parts in zip(*split, strict=True)]
    common = [part for part, same in zip(split[0], alike, strict=True) if same]
    if not any(common):
        return "", values
    rest = [BETWEEN.join(part for part, same in zip(parts, alike, strict=True) if not same) for parts in split]
    return BETWEEN.join(common), rest


def text(value: Any, kind: Kind) -> str:
    """One value of a table: `42.44`, `1,024`, `yes`; a dash where there is none.

    >>> text(0.4244, "percent"), text(1024, "count"), text(None, "number"), text(341.333, "number")
    ('42.44', '1,024', '–', '341.3')
    >>> text(0.02381, "number")
    '0.0238'
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if kind == "percent":
        return f"{100 * value:.2f}"
    if kind == "count":
        return f"{value:,.0f}"
    if kind == "signed":
        return f"{value:+.3f}"
    if kind == "fit":
        return f"{value:.4f}"
    if kind == "number" and 0 < abs(value) < 0.1:
        return f"{value:.3g}"
    if kind == "number":
        return f"{value:,.{1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3}f}"
    return str(value)


def markdown(finding: Finding) -> str:
    """The table and the notes; whatever came from a card is escaped."""
    sides = [":---" if column.kind == "text" else "---:" for column in finding.columns]
    lines = table([column.title for column in finding.columns], finding.texts(), sides)
    notes = [f"- {escaped(note)}" for note in finding.notes]
    return "\n".join([f"## {escaped(finding.title)}", "", escaped(finding.lede), "", lines, "", *notes]) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], sides: Sequence[str] = ()) -> str:
    """A Markdown table; `sides` align its columns.

    >>> print(table(["a", "b_c"], [["1", "x|y"]]))
    | a | b\\_c |
    | --- | --- |
    | 1 | x\\|y |
    """
    lines = [map(escaped, heads), sides or ["---"] * len(heads), *(map(escaped, row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def escaped(words: str) -> str:
    """Text escaped so that Markdown shows it literally, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>|#~!])", r"\\\1", " ".join(printable(words).split()))


def as_csv(finding: Finding) -> str:
    """The rows at full precision, for a data frame; an empty cell where there is no value."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([column.title for column in finding.columns])
    for row in finding.rows:
        writer.writerow([_plain(value) for value in row])
    return buffer.getvalue()


def _plain(value: Any) -> Any:
    """A spreadsheet must not take a name for a formula."""
    if not isinstance(value, str):
        return value
    return printable(f"'{value}" if value.startswith(("=", "+", "-", "@", "\t")) else value)
