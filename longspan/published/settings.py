"""Scores taken out of a table of measurements, as the rows that a board shows."""

from collections.abc import Mapping

from longspan.published.leaderboard import PublishedRow, PublishedTable
from longspan.published.measurement import MeasuredRow, MeasuredTable


def scores_of(table: MeasuredTable, columns: Mapping[str, str]) -> PublishedTable | None:
    """The columns of the table that a board asks for, each under the name it has there; None where one is missing."""
    if not columns or not set(columns.values()) <= {column.name for column in table.columns}:
        return None
    rows = (
        PublishedRow(
            title=row.title,
            kind="published",
            scores={name: _score(row, column) for name, column in columns.items()},
            printed={name: row.printed[column] for name, column in columns.items() if column in row.printed},
            printed_index=row.printed.get("ci"),
            source=table.source,
            mechanism=row.mechanism,
        )
        for row in table.rows
        if any(column in row.printed or column in row.failed for column in columns.values())
    )
    doubts = (flag for flag in table.flags() if flag.column in columns.values())
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


def _score(row: MeasuredRow, column: str) -> float | str:
    """As printed; FAIL where the run failed, NA where there was none."""
    return row.value(column) if column in row.printed else "FAIL" if column in row.failed else "NA"
