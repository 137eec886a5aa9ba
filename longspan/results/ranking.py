"""Which rows lead a column, and the order of the rows."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from longspan.results.board_types import BoardCell, Row
from longspan.results.published_rows import ColumnSpread, column_spreads
from longspan.suites import Average, Suite

LEADING_ERRORS = 2.0


def with_leaders(rows: list[Row], suite: Suite) -> list[Row]:
    """Mark, in every column that two rows or more have run, the best value and those not significantly worse."""
    errors = {
        (row.mechanism, row.pattern, task): _standard_error(cell, suite.measure(task).metric)
        for row in rows
        for task, cell in row.cells.items()
    }
    leaders: set[tuple[str, str, str]] = set()
    for task in suite.columns:
        entries = {
            (row.mechanism, row.pattern, task): (row.cells[task].value, errors[row.mechanism, row.pattern, task])
            for row in rows
            if row.cells[task].status == "ok" and row.cells[task].above_chance is not False
        }
        contenders = sum(row.cells[task].status != "missing" for row in rows)
        if contenders > 1:
            leaders |= _leading(entries, suite.measure(task).higher_is_better)
    for average in suite.averages:
        entries = {}
        for row in rows:
            own = {task: errors[row.mechanism, row.pattern, task] for task in average.tasks}
            error = _average_error(own, suite, average)
            entries[row.mechanism, row.pattern, f"average {average.name}"] = (row.averages[average.name].value, error)
        if sum(value is not None for value, _ in entries.values()) > 1:
            leaders |= _leading(entries, bool(average.constants) or suite.higher_is_better)

    def leads(row: Row, column: str) -> bool:
        return (row.mechanism, row.pattern, column) in leaders

    return [
        replace(
            row,
            cells={task: replace(cell, leading=leads(row, task)) for task, cell in row.cells.items()},
            averages={n: replace(mean, leading=leads(row, f"average {n}")) for n, mean in row.averages.items()},
        )
        for row in rows
    ]


def _standard_error(cell: BoardCell, metric: str) -> float:
    seeds = (cell.std or 0.0) ** 2 / max(cell.seeds, 1)
    value = cell.value or 0.0
    sampling = value * (1 - value) / cell.count if metric == "accuracy" and cell.count else 0.0
    return math.sqrt(seeds + sampling)


def _average_error(errors: Mapping[str, float], suite: Suite, average: Average) -> float:
    """The standard error of an average; metrics of one task come from the same runs, so their errors add linearly."""
    by_task: dict[str, float] = defaultdict(float)
    for column, weight in suite.weights(average).items():
        measure = suite.measure(column)
        scale = measure.factor / measure.scales[average.constants].std if average.constants else 1.0
        by_task[measure.task] += weight * scale * errors[column]
    return math.hypot(*by_task.values())


def _leading(entries: Mapping[tuple, tuple[float | None, float]], higher_is_better: bool) -> set:
    """Keys than which no other is better by more than two standard errors of the difference.

    The best value is not enough to compare with: where its error is large, the second may still be clearly better.
    """
    sign = 1 if higher_is_better else -1
    known = {key: (sign * value, error) for key, (value, error) in entries.items() if value is not None}
    return {
        k
        for k, (v, e) in known.items()
        if all(other <= v or other - v <= LEADING_ERRORS * math.hypot(e, error) for other, error in known.values())
    }


def ranked(rows: list[Row], suite: Suite, rank: bool) -> tuple[Row, ...]:
    """Complete rows by their first average, then the others by how many scores they have and how good these are.

    A board with one column and no average is ranked by that column.
    """
    sign = -1 if suite.higher_is_better else 1
    first = suite.averages[0].name if suite.averages else None
    spreads = spreads_of(rows, suite) if suite.measures else {}

    def standing(column: str, value: float) -> float:
        """A score that is comparable with those of other columns."""
        if not suite.measures:
            return value
        spread = spreads.get(column)
        better = 1 if suite.measure(column).higher_is_better else -1
        return better * (value - spread.mean) / spread.std if spread and spread.std else 0.0

    def key(row: Row) -> tuple:
        average = row.averages[first].value if first else None
        scored = ((c, cell.value) for c, cell in row.cells.items() if cell.status == "ok" and c not in suite.scored)
        values = [standing(column, value) for column, value in scored if value is not None]
        partial = statistics.fmean(values) if values else 0.0
        complete = average is not None
        return (
            not complete,
            sign * (average or 0.0),
            -len(values),
            sign * partial,
            row.title,
            row.mechanism,
            row.pattern,
        )

    ordered = sorted(rows, key=key)
    lone = suite.columns[0] if len(suite.columns) == 1 else None
    if not rank or (first is None and lone is None):
        return tuple(ordered)
    cells = [row.cells[lone] if lone else None for row in ordered]
    means = [
        row.averages[first].value if first else cell.value if cell and cell.status == "ok" else None
        for row, cell in zip(ordered, cells, strict=True)
    ]
    return tuple(
        replace(row, rank=means.index(mean) + 1 if mean is not None else None)
        for row, mean in zip(ordered, means, strict=True)
    )


def spreads_of(rows: Sequence[Row], suite: Suite) -> dict[str, ColumnSpread]:
    """Mean and deviation over the ranked rows of every column in which two or more have a number."""
    rows = [row for row in rows if row.conformance.status != "broken"]
    columns: dict[str, list[float | None]] = {
        task: [row.cells[task].value if row.cells[task].status == "ok" else None for row in rows]
        for task in suite.columns
    }
    columns |= {average.name: [row.averages[average.name].value for row in rows] for average in suite.averages}
    return column_spreads(columns)
