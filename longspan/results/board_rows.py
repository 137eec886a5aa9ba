"""The rows of a board: the cells, averages and cost of a mechanism, and its distance to a published row."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from longspan.core.printable import shown
from longspan.published import PublishedTable
from longspan.results.board_cells import best_of, geometric_mean, mean_of_settings
from longspan.results.board_columns import Columns, by_row
from longspan.results.board_types import BoardCell, Mean, Row
from longspan.results.card import Card
from longspan.results.parameter_rule import PARAMETER_RULE
from longspan.results.published_rows import PaperRow
from longspan.results.ranking import ranked, with_leaders
from longspan.results.row_conformance import Conformance
from longspan.suites import Average, Suite

MOST_LETTERS = 80  # of the name of a promise, which is untrusted


def make_rows(
    cards: list[Card],
    columns: Columns,
    common: tuple[str, ...],
    passed: Mapping[tuple[str, str], Conformance],
    rank: bool,
) -> tuple[Row, ...]:
    """Rows that keep their promises or were not checked, best first, then those that break one."""
    suite, rows = columns.suite, []
    for (mechanism, pattern), of_row in by_row(cards, suite).items():
        some, found = of_row[-1], passed[mechanism, pattern]
        shown_in = mean_of_settings if suite.measures else best_of
        own = {column: shown_in(of_row, suite, column, tasks) for column, tasks in columns.behind.items()}
        speeds = [own[task].steps_per_second for task in common]
        sizes = [own[task].parameters for task in common]
        ratios = [cell.ratio for cell in own.values() if cell.ratio is not None]
        over = max(ratios, default=0) > PARAMETER_RULE and some["track"] == "fixed"
        rows.append(
            Row(
                mechanism=shown(mechanism),
                title=shown(some["title"]),
                pattern=shown(pattern),
                rank=None,
                cells=own,
                averages={average.name: _mean(own, suite, average) for average in suite.averages},
                steps_per_second=geometric_mean(speeds),
                parameters=statistics.fmean(sizes) if sizes and None not in sizes else None,  # type: ignore[type-var]
                ratio=max(ratios, default=None),
                note="more than 10 % above the parameters of softmax" if over else "",
                conformance=replace(found, broken=tuple(shown(name)[:MOST_LETTERS] for name in found.broken)),
            )
        )
    sound = [row for row in rows if row.conformance.status != "broken"]
    broken = [row for row in rows if row.conformance.status == "broken"]
    return *ranked(with_leaders(sound, suite), suite, rank), *ranked(broken, suite, rank=False)


def _mean(cells: Mapping[str, BoardCell], suite: Suite, average: Average) -> Mean:
    values, missing = {}, []
    for task in average.tasks:
        cell = cells[task]
        if cell.lacking:
            missing.extend(cell.lacking)
        elif cell.status == "ok" and cell.value is not None:
            values[task] = cell.value
        elif cell.status == "fail" and task in average.fail_as:
            values[task] = average.fail_as[task]
        else:
            names = suite.measure(task).settings
            missing.extend(f"{name} (FAIL)" if cell.status == "fail" else name for name in names)
    return Mean(None, tuple(dict.fromkeys(missing))) if missing else Mean(suite.mean(average, values))


def with_counterpart(row: Row, table: PublishedTable | None, beside: Sequence[PaperRow]) -> Row:
    """The row with its distance to the published one of the same attention, where both have a number."""
    found = table.counterpart(row.mechanism) if table and table.comparable else None
    if table is None or found is None or row.pattern != table.pattern:
        return row
    paper_row = next(candidate for candidate in beside if candidate.title == found.title)
    own = {task: cell.value for task, cell in row.cells.items() if cell.status == "ok"}
    own |= {name: mean.value for name, mean in row.averages.items()}
    printed = {**paper_row.scores, **paper_row.averages}
    differences = {
        column: value - theirs
        for column, value in own.items()
        if value is not None and isinstance(theirs := printed.get(column), float)
    }
    return replace(row, counterpart=found.title, differences=differences)
