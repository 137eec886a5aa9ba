"""A board that displays itself in a notebook: `results.board.Board` with a data frame and a plot."""

from collections.abc import Sequence
from typing import Any

from longspan.notebook.frame import frame
from longspan.notebook.html_table import html_table
from longspan.results.board_table import NAME, Part, footnotes, names_of, parts, unit_of
from longspan.results.board_types import Board, Row
from longspan.results.render import render


class BoardView:
    """All attributes of the board are here: `title`, `rows`, `published`, `notes`, `off`."""

    def __init__(self, board: Board):
        self.board = board

    def __getattr__(self, name: str) -> Any:
        if name == "board":  # not there yet, while a copy is being made
            raise AttributeError(name)
        return getattr(self.board, name)

    def __repr__(self) -> str:
        return render(self.board, "terminal")

    def _repr_html_(self) -> str:
        *others, last = parts(self.board)
        tables = [_table(part) for part in others]
        return "".join([*tables, _table(last, footnotes(self.board))])

    def row(self, mechanism: str) -> Row:
        """The row of a mechanism, by its string or its title."""
        for one in (*self.board.rows, *self.board.free, *self.board.fidelity):
            if mechanism in (one.mechanism, one.title):
                return one
        raise KeyError(f"No row {mechanism!r} on {self.board.title}.")

    def to_pandas(self) -> Any:
        """A row for each mechanism: its rank, a column for each task and average, speed and parameters.

        Scores are fractions or plain numbers, as on the cards; a score that is not there is NaN.
        """
        return frame(map(self._record, self.board.rows))

    def _record(self, row: Row) -> dict[str, Any]:
        scores = {task: cell.value for task, cell in row.cells.items()}
        means = {name: mean.value for name, mean in row.averages.items()}
        speed = {"steps_per_second": row.steps_per_second, "parameters": row.parameters}
        return {"rank": row.rank, "mechanism": row.mechanism, "title": row.title, **scores, **means, **speed}

    def plot(self) -> Any:
        """A panel for each task: the mean of each mechanism with its 95 % interval over seeds."""
        from longspan.notebook.figure import dots

        names = names_of(self.board)
        rows = self.board.rows
        labels = [names.get((row.mechanism, row.pattern), row.title) for row in rows]
        return dots(labels, {self._label(task): [self._interval(row, task) for row in rows] for task in self._tasks()})

    def _tasks(self) -> list[str]:
        return list(self.board.suite.columns)

    def _label(self, column: str) -> str:
        title = self.board.suite.measure(column).title
        return f"{title}, %" if unit_of(self.board, column) == "percent" else title

    def _interval(self, row: Row, column: str) -> tuple[float, float, float] | None:
        cell = row.cells[column]
        if cell.value is None:
            return None
        scale = 100.0 if unit_of(self.board, column) == "percent" else 1.0
        low, high = cell.interval or (cell.value, cell.value)
        return scale * low, scale * cell.value, scale * high


def _table(part: Part, notes: Sequence[str] = ()) -> str:
    """A part of the board; a section that has a heading begins with it."""
    lines: list[Sequence[str]] = []
    for section in part.sections:
        if section.heading:
            lines.append([section.heading if name == NAME else "" for name in part.columns])
        lines += [line.texts for line in section.lines]
    numbers = [name for name in part.columns if name != NAME]
    return html_table(part.columns, lines, title=part.title, notes=notes, numbers=numbers)
