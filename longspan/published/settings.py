"""Scores of single settings, taken out of a table of measurements, as the rows that a board shows."""

from collections.abc import Collection

from longspan.published.leaderboard import PublishedRow, PublishedTable
from longspan.published.measurement import MeasuredTable


def scores_of(table: MeasuredTable, tasks: Collection[str], metric: str) -> PublishedTable | None:
    """The columns `TASK_METRIC` of the table, one for every task; None where one is missing."""
    columns = {task: f"{task}_{metric}" for task in tasks}
    if not columns or not set(columns.values()) <= {column.name for column in table.columns}:
        return None
    rows = (
        PublishedRow(
            title=row.title,
            kind="published",
            scores={task: row.value(column) for task, column in columns.items()},
            source=table.source,
            mechanism=row.mechanism,
        )
        for row in table.rows
    )
    doubts = (flag for flag in table.doubts if flag.column in columns.values())
    return PublishedTable(
        name=table.name,
        title=table.title,
        suite=table.suite,
        version=1,
        period=table.period,
        paper=table.paper,
        source=table.source,
        note=table.note,
        rows=tuple(rows),
        summary={},
        pattern=table.pattern,
        doubts=tuple(f"{flag.row}: {flag.printed} is printed, but {flag.why}." for flag in doubts),
    )
