"""The answer to a question as a notebook shows it: `analysis.Finding` with a data frame and a plot."""

from collections.abc import Sequence
from typing import Any

from longspan.analysis.advise import UNBEATEN, YES
from longspan.analysis.finding import Finding, markdown
from longspan.core.errors import DataMissing
from longspan.notebook.frame import frame
from longspan.notebook.html_table import html_table


class AnswerView:
    """All attributes of the finding are here: `title`, `lede`, `rows`, `notes`."""

    def __init__(self, finding: Finding):
        self.finding = finding

    def __getattr__(self, name: str) -> Any:
        if name == "finding":  # not there yet, while a copy is being made
            raise AttributeError(name)
        return getattr(self.finding, name)

    def __repr__(self) -> str:
        return markdown(self.finding.condensed())

    def _repr_html_(self) -> str:
        brief = self.finding.condensed()
        heads = [column.title for column in brief.columns]
        numbers = [column.title for column in brief.columns if column.kind != "text"]
        told = {"title": brief.title, "lede": brief.lede, "notes": brief.notes, "numbers": numbers}
        return html_table(heads, brief.texts(), **told)

    def to_pandas(self) -> Any:
        """The rows at full precision; fractions are fractions."""
        return frame(self.finding.to_json()["rows"], columns=[column.title for column in self.finding.columns])

    def plot(self, x: str | None = None, y: str | None = None) -> Any:
        """One column against another, the first two that hold numbers unless named; the first column labels points."""
        from longspan.notebook.figure import scatter

        numbers = [column.title for column in self.finding.columns if column.kind != "text"]
        x, y = self._chosen([x, y], numbers)
        points: dict[str, tuple[float, float]] = {}
        for row in self.finding.to_json()["rows"]:
            if row[x] is not None and row[y] is not None:
                points[str(next(iter(row.values())))] = row[x], row[y]
        if not points:
            raise DataMissing(f"No row has both {x!r} and {y!r}; name other columns: {', '.join(numbers)}.")
        return scatter(points, x=x, y=y, title=self.finding.title, best=self._unbeaten() or list(points))

    def _unbeaten(self) -> list[str]:
        """The names that a column of the answer marks as unbeaten."""
        titles = [column.title for column in self.finding.columns]
        if UNBEATEN not in titles:
            return []
        return [str(row[0]) for row in self.finding.rows if row[titles.index(UNBEATEN)] == YES]

    def _chosen(self, asked: Sequence[str | None], numbers: Sequence[str]) -> list[str]:
        unknown = [name for name in asked if name is not None and name not in numbers]
        rest = [name for name in numbers if name not in asked]
        if unknown or len(numbers) < 2:
            there = ", ".join(numbers) or "none"
            raise DataMissing(f"A plot needs two columns of numbers, and {self.finding.title} has: {there}.")
        return [name if name is not None else rest.pop(0) for name in asked]
