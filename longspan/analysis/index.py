"""How good is a mechanism over all tasks of a pattern? CAB's compositional index, as published and from our runs.

An index averages z-scores over each task's metrics, and then over the tasks. It is shown with what the paper does not
have: an interval over seeds, and the ranks a mechanism takes when one task is left out. A failed run counts as missing,
and a mechanism that lacks a task has no index.
"""

from collections.abc import Sequence

from longspan import published
from longspan.analysis.cards import Evidence
from longspan.analysis.finding import Column, Finding
from longspan.analysis.own_index import IndexRow, own_rows
from longspan.published.contradictions import contradictions
from longspan.published.index_audit import IndexCheck, index_checks, known, score_rows
from longspan.published.index_constants import IndexPattern, index_constants

PUBLISHED = "published"
COLUMNS = (
    Column("Pattern"),
    Column("Mechanism"),
    Column("From", context=True),
    Column("Constants", context=True),
    Column("CI", "signed", "mean of the tasks"),
    Column("95 % interval", "text", "bootstrap over seeds"),
    Column("Rank", "count"),
    Column("Ranks without a task", "text", "the best and the worst when one task is left out"),
    Column("Tasks", "text", "the mean z-score of each task's metrics"),
    Column("Printed", "text", "the index in Table 3"),
    Column("Reproduced", "text", "from what the printed index can be counted again"),
    Column("Seeds", "count", "the fewest behind a task"),
)
VERDICTS = {
    "printed": "from the printed scores",
    "sources": "from other sources, the printed scores have too few digits",
    "rounding": "as far as the printed digits go",
    "error": "no",
}


def answer(evidence: Evidence) -> Finding:
    own, notes = own_rows(evidence.runs)
    if own:
        notes.append("Constants of an own pool are its mean and sample deviation: nothing compares across pools.")
    return _finding([*own, *published_rows()], notes)


def answer_published() -> Finding:
    """The paper's own scores alone, with everything in its tables that contradicts them."""
    return _finding(published_rows(), [])


def published_rows() -> list[IndexRow]:
    """The index of every published row that has one, with either set of constants, from the best sources available."""
    checks = {(check.pattern, check.row): check for check in index_checks() if check.task is None}
    return [
        found
        for pattern in index_constants().patterns.values()
        for constants in index_constants().versions
        for row in score_rows(pattern)
        if (found := _published_row(pattern, row.title, constants, checks.get((pattern.pattern, row.title))))
    ]


def _published_row(pattern: IndexPattern, title: str, constants: str, check: IndexCheck | None) -> IndexRow | None:
    row = published.measured(pattern.table).row(title)
    tasks = {}
    for task, measures in pattern.tasks.items():
        values = [(measure, known(row, measure)) for measure in measures]
        z = [measure.z(value / measure.factor, constants) for measure, value in values if value is not None]
        if len(z) < len(values):
            return None  # a run that failed
        tasks[task] = sum(z) / len(z)
    own = constants == "cab-2023" and check is not None
    return IndexRow(
        pattern.pattern,
        title,
        row.mechanism or title,
        PUBLISHED,
        constants,
        tasks,
        printed=check.printed if own and check else "",
        verdict=_verdict(check) if own and check else "",
    )


def _verdict(check: IndexCheck) -> str:
    return f"no: {check.why}" if check.kind == "error" else VERDICTS[check.kind]


def _finding(rows: Sequence[IndexRow], notes: Sequence[str]) -> Finding:
    ordered = [row for pool in dict.fromkeys(row.pool for row in rows) for row in _ranked(rows, pool)]
    constants = index_constants()
    used = [name for name in constants.versions if any(row.constants == name for row in rows)]
    about = [f"{name}, version {constants.versions[name]}: {constants.about[name]}." for name in used]
    wrong = [f"Printed error. {found.text}" for found in contradictions()]
    return Finding(
        "index",
        "Compositional index",
        "The mean z-score of each task's metrics, averaged over the tasks of a pattern.",
        COLUMNS,
        tuple(_line(row, ordered) for row in ordered),
        (*notes, *about, *_moved(ordered), *wrong),
        tuple(ordered),
    )


def _ranked(rows: Sequence[IndexRow], pool: tuple[str, str, str]) -> list[IndexRow]:
    return sorted((row for row in rows if row.pool == pool), key=lambda row: (-row.index, row.title))


def rank(row: IndexRow, rows: Sequence[IndexRow], without: str | None = None) -> int:
    """The place of a row in its pool, with a task left out where one is named."""
    own = row.index if without is None else row.without(without)
    others = (o.index if without is None else o.without(without) for o in rows if o.pool == row.pool)
    return 1 + sum(other > own for other in others)


def ranks_without(row: IndexRow, rows: Sequence[IndexRow]) -> dict[str, int]:
    """The place of a row when each task is left out; empty where there is only one."""
    return {task: rank(row, rows, task) for task in row.tasks} if len(row.tasks) > 1 else {}


def _line(row: IndexRow, rows: Sequence[IndexRow]) -> tuple:
    places = sorted(set(ranks_without(row, rows).values()))
    titles = index_constants().tasks
    return (
        index_constants().patterns[row.pattern].code,
        row.title,
        row.origin,
        row.constants,
        row.index,
        "–" if row.interval is None else f"{row.interval[0]:+.3f} to {row.interval[1]:+.3f}",
        rank(row, rows),
        "–" if not places else str(places[0]) if len(places) == 1 else f"{places[0]} to {places[-1]}",
        ", ".join(f"{titles[task]} {score:+.3f}" for task, score in row.tasks.items()),
        row.printed or "–",
        row.verdict or "–",
        row.seeds,
    )


def _moved(rows: Sequence[IndexRow]) -> list[str]:
    """A note on each mechanism that leads a pool because of one task alone."""
    notes = []
    for row in rows:
        if rank(row, rows) != 1 or len([other for other in rows if other.pool == row.pool]) < 2:
            continue
        task, place = max(ranks_without(row, rows).items(), key=lambda item: item[1], default=("", 1))
        if place > 1:
            code, title = index_constants().patterns[row.pattern].code, index_constants().tasks[task]
            where = f"{code}, {row.origin}, {row.constants}"
            notes.append(f"{where}: {row.title} leads by {title} alone: without it, it is number {place}.")
    return notes
