"""The published table on a board: scores as printed, averages and spreads recomputed, printed errors flagged."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from longspan import published as papers
from longspan import suites
from longspan.core.errors import UsageError
from longspan.published import PublishedRow, PublishedTable
from longspan.published.contradictions import contradictions
from longspan.published.index_audit import CONSTANTS, index_checks, known
from longspan.suites import Average, Suite

SUMMARY = "Task Avg (Std)"


@dataclass(frozen=True)
class ColumnSpread:
    """A column over all models: mean and sample standard deviation, and the printed text where a paper gives one."""

    mean: float
    std: float
    printed: str | None = None
    is_wrong: bool = False


@dataclass(frozen=True)
class PaperRow:
    """A row shown as published: scores as cards have them, accuracies as fractions."""

    title: str
    kind: str
    scores: Mapping[str, float | str]
    averages: Mapping[str, float | None]  # recomputed
    printed_average: float | None
    average_is_wrong: bool
    source: str
    also_printed: tuple[tuple[float, str], ...] = ()  # other averages for the same row, and where
    printed_over: int = 5  # tasks behind the printed average
    deviations: tuple[str, ...] = ()  # from the rules of the benchmark
    printed: Mapping[str, str] = field(default_factory=dict)  # scores exactly as printed


@dataclass(frozen=True)
class Paper:
    """The published table on a board. Where `comparable` is false it stands apart from everything else."""

    name: str
    title: str
    source: str
    period: str
    note: str
    comparable: bool
    summary: Mapping[str, ColumnSpread | str]  # "Task Avg (Std)"; FAIL where a paper prints that
    flags: tuple[str, ...]  # printed errors, a sentence each


def published_table(name: str | None, suite: Suite) -> PublishedTable | None:
    """The table of that name, which must belong to the suite or to the larger one whose tables it shows."""
    if name is None:
        return None
    own = [table for table in tables_of(suite) if table.name == name]
    if own:
        return own[0]
    table = papers.load(name)
    if table.suite not in (suite.name, suite.published):
        raise UsageError(f"The published table {name} belongs to suite {table.suite}, not to {suite.name}.")
    return table if table.suite == suite.name else table.over(suite.tasks)


def tables_of(suite: Suite) -> list[PublishedTable]:
    """The tables in which papers print exactly the columns of a suite, by pattern; leaderboards are not among them."""
    if suite.measures:
        return papers.for_columns({column: column for column in suite.columns})
    return papers.for_tasks(suite.tasks, suite.metric)


def paper_rows(table: PublishedTable | None, suite: Suite) -> tuple[PaperRow, ...]:
    """The rows of the table with the averages of the suite."""
    if table is None:
        return ()
    return tuple(_indexed(row, table, suite) if suite.measures else _averaged(row, suite) for row in table.rows)


def _averaged(row: PublishedRow, suite: Suite) -> PaperRow:
    unit = _fraction if suite.unit == "percent" else float
    averages = {
        average.name: row.average(average.tasks, {task: 100 * value for task, value in average.fail_as.items()})
        for average in suite.averages
    }
    return PaperRow(
        title=row.title,
        kind=row.kind,
        scores={t: s if isinstance(s, str) else unit(s) for t, s in row.scores.items()},
        averages={key: None if value is None else unit(value) for key, value in averages.items()},
        printed_average=None if row.printed_average is None else unit(row.printed_average),
        average_is_wrong=row.average_is_wrong,
        source=row.source,
        also_printed=tuple((unit(value), source) for value, source in row.also_printed),
        printed_over=row.printed_over,
        deviations=row.deviations,
        printed=row.printed,
    )


def _indexed(row: PublishedRow, table: PublishedTable, suite: Suite) -> PaperRow:
    """A row of several metrics with its index recomputed, from more digits where other sources have them.

    A score that another source contradicts is taken as printed under the constants that are the paper's, so that its
    index shows the contradiction, and from that source under those that were recomputed from it.
    """
    source = papers.measured(table.name).row(row.title)

    def index(average: Average) -> float | None:
        as_printed = average.constants == CONSTANTS
        numbers = {}
        for column, score in row.scores.items():
            measure = suite.measure(column)
            kept = as_printed and source.is_contradicted(column)
            best = score if kept or isinstance(score, str) else known(source, measure)
            if isinstance(best, float):
                numbers[column] = _plain(best, measure.factor)
        return suite.mean(average, numbers) if len(numbers) == len(suite.columns) else None

    wrong = {(check.pattern, check.row) for check in index_checks() if check.task is None and check.kind == "error"}
    return PaperRow(
        title=row.title,
        kind=row.kind,
        scores={c: s if isinstance(s, str) else _plain(s, suite.measure(c).factor) for c, s in row.scores.items()},
        averages={average.name: index(average) for average in suite.averages},
        printed_average=None if row.printed_index is None else float(row.printed_index),
        average_is_wrong=(table.pattern, row.title) in wrong,
        source=row.source,
        printed=row.printed,
    )


def _plain(score: float, factor: int) -> float:
    """
    >>> _plain(34.61, 100), _plain(3.475, 1)
    (0.3461, 3.475)
    """
    return _fraction(score) if factor == 100 else score


def _fraction(percentage: float) -> float:
    """A printed percentage as a fraction that reads back as the same digits."""
    return round(percentage / 100, 12)


def column_spreads(columns: Mapping[str, Sequence[float | str | None]]) -> dict[str, ColumnSpread]:
    """Mean and sample standard deviation of every column that has two numbers or more."""
    numbers = {name: [v for v in values if isinstance(v, float)] for name, values in columns.items()}
    return {n: ColumnSpread(statistics.fmean(v), statistics.stdev(v)) for n, v in numbers.items() if len(v) > 1}


def paper_of(table: PublishedTable | None, rows: Sequence[PaperRow], suite: Suite) -> Paper | None:
    """What a board says about the table as a whole."""
    if table is None:
        return None
    summary: dict[str, ColumnSpread | str] = {}
    if table.summary:
        models = [row for row in rows if row.kind == "published"]
        columns = {task: [row.scores[task] for row in models] for task in suite.columns}
        columns |= {average.name: [row.averages[average.name] for row in models] for average in suite.averages}
        summary = {**column_spreads(columns)}
        first = suite.averages[0].name
        for column in (*suite.columns, first):
            key = "average" if column == first else column
            printed = table.summary.get(key)
            found = summary.get(column)
            if isinstance(printed, str):
                summary[column] = printed
            elif printed is not None and isinstance(found, ColumnSpread):
                text = f"{printed['mean']:.0f} ({printed['std']:.1f})"
                summary[column] = replace(found, printed=text, is_wrong=table.spread_is_wrong(key))
    wrong = [found for found in contradictions() if suite.measures and table.pattern in found.patterns]
    return Paper(
        name=table.name,
        title=table.title,
        source=table.source,
        period=table.period,
        note=table.note,
        comparable=table.comparable,
        summary=summary,
        flags=(*_flags(table, summary), *(found.text for found in wrong)),
    )


def _flags(table: PublishedTable, summary: Mapping[str, ColumnSpread | str]) -> Iterator[str]:
    """Every printed error of the table, a sentence each."""
    yield from table.doubts
    for row in table.rows:
        if row.average_is_wrong:
            also = "".join(f" ({value:.2f} in {source})" for value, source in row.also_printed)
            yield (
                f"{row.title}: the average is printed as {row.printed_average:.2f}{also}, "
                f"but the mean of the printed scores is {row.recomputed_average:.2f}."
            )
    for column, spread in summary.items():
        if isinstance(spread, ColumnSpread) and spread.is_wrong:
            what = suites.heading(column) if column in suites.HEADINGS else "the averages"
            yield (
                f"{SUMMARY}: {spread.printed} is printed for {what}, "
                f"but the rows give {100 * spread.mean:.0f} ({100 * spread.std:.1f})."
            )
