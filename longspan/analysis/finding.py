"""A finding: the answer to one question as a table with notes, and what its figure is drawn from."""

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["text", "percent", "number", "count"]


@dataclass(frozen=True)
class Column:
    """`percent` columns hold fractions."""

    title: str
    kind: Kind = "text"
    hint: str = ""


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

    def texts(self) -> list[list[str]]:
        """The rows as people read them."""
        return [
            [text(value, column.kind) for value, column in zip(row, self.columns, strict=True)] for row in self.rows
        ]


def text(value: Any, kind: Kind) -> str:
    """One value of a table: `42.44`, `1,024`, `yes`; a dash where there is none.

    >>> text(0.4244, "percent"), text(1024, "count"), text(None, "number"), text(341.333, "number")
    ('42.44', '1,024', '–', '341.3')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if kind == "percent":
        return f"{100 * value:.2f}"
    if kind == "count":
        return f"{value:,.0f}"
    if kind == "number":
        return f"{value:,.{1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3}f}"
    return str(value)
