"""Which patterns and tasks rank mechanisms alike? Pearson's r over the mechanisms that two of them have in common.

CAB's figures 3a and 4, recomputed from the printed scores, with Long Range Arena's tasks beside CAB's, and the same
from our runs: the tasks under one set of rules, those of all patterns and rules, and the indices of patterns. Every
pair uses the mechanisms that have both (pairwise complete); r needs at least three of them, its interval (Fisher's z)
at least four. Failed runs count as missing.
"""

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from longspan import published
from longspan.analysis.cards import Evidence
from longspan.analysis.finding import Column, Finding
from longspan.analysis.index import published_rows
from longspan.analysis.own_patterns import own_patterns
from longspan.analysis.score_tables import ScoreTable, own_tables, published_tables
from longspan.analysis.task_columns import TaskColumn, own_columns
from longspan.published.index_constants import index_constants

MIN_METHODS = 3
DECODED = 0.03  # tolerance of agreement: r is decoded from the figure's colours
LEADERBOARD = "published (lra-v1)"
COLUMNS = (
    Column("From"),
    Column("One"),
    Column("Other"),
    Column("Methods", "count", "that have both"),
    Column("r", "signed", "Pearson's correlation"),
    Column("95 % interval", "text", "by Fisher's z, of four methods or more"),
    Column("In the figure", "signed", "decoded from its colours"),
    Column("Agrees", "text", f"within {DECODED}"),
)
Scores = Mapping[str, float]  # by mechanism, more is better


@dataclass(frozen=True)
class Pair:
    """Two sets of scores over the mechanisms they share; r is None below three, or where one set is constant."""

    methods: int
    r: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        return self.interval_at(0.95)

    def interval_at(self, level: float) -> tuple[float, float] | None:
        """By Fisher's z; None below four methods, and where r is undefined, 1 or -1."""
        if self.r is None or self.methods < 4 or abs(self.r) >= 1:
            return None
        z = math.atanh(self.r)
        half = statistics.NormalDist().inv_cdf((1 + level) / 2) / math.sqrt(self.methods - 3)
        return math.tanh(z - half), math.tanh(z + half)


@dataclass(frozen=True)
class Grid:
    """All pairs of one origin; `figure` holds the r that a paper's figure shows for them."""

    origin: str
    names: tuple[str, ...]
    pairs: Mapping[tuple[int, int], Pair]  # keyed by places in `names`, the lower first
    figure: Mapping[tuple[int, int], float]
    title: str = ""  # of the figure
    unprinted: frozenset[int] = frozenset()  # places whose scores the figure's paper does not print

    def is_checked(self, place: tuple[int, int]) -> bool:
        """Whether the figure shows this pair and the paper prints the scores behind it."""
        return place in self.figure and not self.unprinted & set(place)


def answer(evidence: Evidence) -> Finding:
    grids = [grid for table in own_tables(evidence.runs) if (grid := _own(table))]
    within = sum(pair.r is not None for grid in grids for pair in grid.pairs.values())
    across = _joined("own, tasks of all patterns", own_columns(evidence.runs))
    grids += [grid for grid in across if sum(pair.r is not None for pair in grid.pairs.values()) > within]
    grids += _joined("own, patterns", own_patterns(evidence.runs))
    patterns, tasks = _patterns(), _tasks()
    grids += [patterns, tasks]
    notes = [note for grid in (patterns, tasks) for note in _verdict(grid)]
    notes += _exchanged(patterns)
    notes.append(
        "CAB does not print its scores on Long Range Arena: here they are those of the leaderboard (version 1), which "
        "has three mechanisms in common with CAB, and are not held against the figures."
    )
    notes.append("FlashAttention computes what vanilla does and is left out, as in the figures.")
    notes.append("Three or four methods carry little: of twenty pairs that have nothing in common, one looks related.")
    return Finding(
        "correlation",
        "Correlation of patterns and tasks",
        "Pearson's r over the mechanisms that both have; a number below it counts them.",
        COLUMNS,
        tuple(row for grid in grids for row in _rows(grid)),
        tuple(notes),
        tuple(grids),
    )


def correlate(one: Scores, other: Scores) -> Pair:
    """Over the mechanisms that both have.

    >>> correlate({"a": 1, "b": 2, "c": 3}, {"a": 2, "b": 4, "c": 6, "d": 0})
    Pair(methods=3, r=1.0)
    """
    common = sorted(set(one) & set(other))
    if len(common) < MIN_METHODS:
        return Pair(len(common), None)
    columns = [[own[name] for name in common] for own in (one, other)]
    if any(len(set(column)) == 1 for column in columns):
        return Pair(len(common), None)
    try:
        r = statistics.correlation(*columns)
    except statistics.StatisticsError:  # values so close that their squared deviations underflow
        return Pair(len(common), None)
    return Pair(len(common), max(-1.0, min(1.0, r)))


def _grid(
    origin: str, columns: Mapping[str, tuple[str, Scores]], figure: str | None = None, unprinted: Collection[str] = ()
) -> Grid:
    """All pairs of named columns, beside those of a published figure."""
    order = list(columns)
    places = list(combinations(range(len(order)), 2))
    pairs = {(i, j): correlate(columns[order[i]][1], columns[order[j]][1]) for i, j in places}
    shown = published.measured(figure) if figure else None
    decoded = {(i, j): shown.row(order[i]).value(order[j]) for i, j in places} if shown else {}
    names = tuple(title for title, _ in columns.values())
    title = shown.source.rpartition(", ")[2] if shown else ""
    return Grid(origin, names, pairs, decoded, title, frozenset(order.index(name) for name in unprinted))


def _own(table: ScoreTable) -> Grid | None:
    """The tasks of our runs; None where no two share three mechanisms."""
    columns = {task: (title, _column(table, task)) for task, title in table.tasks.items()}
    grid = _grid(table.origin, columns)
    return grid if any(pair.r is not None for pair in grid.pairs.values()) else None


def _joined(origin: str, columns: Sequence[TaskColumn]) -> list[Grid]:
    """Columns that were not run under the same rules; empty where no two share three mechanisms that differ."""
    grid = _grid(origin, {column.title: (column.title, column.scores) for column in columns})
    related = {place for pair, own in grid.pairs.items() if own.r is not None for place in pair}
    kept = [column for place, column in enumerate(columns) if place in related]
    return [_grid(origin, {column.title: (column.title, column.scores) for column in kept})] if kept else []


def _column(table: ScoreTable, task: str) -> dict[str, float]:
    return {name: own[task] for name, own in table.scores.items() if task in own and name != "FlashAttention"}


def _patterns() -> Grid:
    """The compositional index of each pattern, and one of Long Range Arena's leaderboard made the same way."""
    (board,) = (table for table in published_tables() if table.origin == LEADERBOARD)
    tasks = {task: _column(board, task) for task in board.tasks}
    scales = {t: (statistics.fmean(own.values()), statistics.stdev(own.values())) for t, own in tasks.items()}
    z = {t: {name: (score - scales[t][0]) / scales[t][1] for name, score in own.items()} for t, own in tasks.items()}
    arena = {name: statistics.fmean(own[name] for own in z.values()) for name in board.scores}
    columns: dict[str, tuple[str, Scores]] = {"lra": ("LRA", arena)}
    rows = [row for row in published_rows() if row.constants == "cab-2023" and row.mechanism != "FlashAttention"]
    for pattern in index_constants().patterns.values():
        own = {row.mechanism: row.index for row in rows if row.pattern == pattern.pattern}
        columns[pattern.code.lower()] = (pattern.code, own)
    return _grid("published, patterns", columns, "cab-pattern-correlation", ["lra"])


def _tasks() -> Grid:
    """Long Range Arena's tasks beside CAB's."""
    tables = [table for table in published_tables() if table.origin == LEADERBOARD or "cab" in table.origin]
    columns = {task: (title, _column(table, task)) for table in tables for task, title in table.tasks.items()}
    return _grid("published, tasks", columns, "cab-task-correlation", published.FIVE)


def _rows(grid: Grid) -> Iterator[tuple]:
    for (i, j), pair in grid.pairs.items():
        if pair.r is None:
            continue
        figure, low_high = grid.figure.get((i, j)), pair.interval
        interval = "–" if low_high is None else f"{low_high[0]:+.2f} to {low_high[1]:+.2f}"
        agrees = abs(grid.figure[i, j] - pair.r) <= DECODED if grid.is_checked((i, j)) else None
        yield grid.origin, grid.names[i], grid.names[j], pair.methods, pair.r, interval, figure, agrees


def _verdict(grid: Grid) -> Iterator[str]:
    """How much of a figure the printed scores confirm, and what it shows that they cannot give."""
    checked = {place: pair.r for place, pair in grid.pairs.items() if grid.is_checked(place)}
    known = {place: r for place, r in checked.items() if r is not None}
    same = sum(abs(grid.figure[place] - r) <= DECODED for place, r in known.items())
    yield f"{grid.title}: {same} of {len(known)} correlations that the printed scores give agree with it."
    few = [f"{grid.names[i]} and {grid.names[j]}" for (i, j), r in checked.items() if r is None]
    if few:
        more = f" and {len(few) - 3} more" if len(few) > 3 else ""
        yield (
            f"{grid.title} also has a number for {len(few)} pairs with fewer than {MIN_METHODS} methods in common "
            f"({', '.join(few[:3])}{more}): two give 1 or -1 whatever they are, and one gives nothing unless runs that "
            "failed were counted by values that are not printed."
        )


def _exchanged(grid: Grid) -> list[str]:
    """Pairs of rows of a figure that fit each other's printed scores better than their own."""
    notes = []
    for i, j in grid.pairs:
        others = [k for k in range(len(grid.names)) if k not in (i, j)]
        own, turned = (_distance(grid, j, row, others) for row in (j, i))
        if own and turned and len(own) > 1 and max(turned) <= DECODED < max(own):
            one, other = grid.names[i], grid.names[j]
            notes.append(f"{grid.title} shows the correlations of {other} under {one}: both are likely exchanged.")
    return notes


def _distance(grid: Grid, name: int, row: int, others: Sequence[int]) -> list[float]:
    """How far the correlations of one name lie from those that a row of the figure shows."""
    found = []
    for k in others:
        r = grid.pairs[min(name, k), max(name, k)].r
        if r is not None:
            found.append(abs(r - grid.figure[min(row, k), max(row, k)]))
    return found
