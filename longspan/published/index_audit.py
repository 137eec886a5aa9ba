"""CAB's compositional index recomputed from its own tables.

    [check for check in index_checks() if check.kind == "error"]        # what no rounding explains

A task's score is the mean z of its metrics, an index the mean of its tasks. Each is computed twice, from the scores as
printed and with what other sources have: more digits, single settings of forecasting, or another number.
"""

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from longspan import published
from longspan.published.index_constants import IndexPattern, Measure, index_constants
from longspan.published.measurement import MeasuredRow, half_unit

CONSTANTS = "cab-2023"
UNIT = 0.001  # of the last digit printed; the paper rounds some indices and cuts others off
SETTINGS = "cab-forecasting"
SLACK = 5e-5  # what the digits of the constants leave open


@dataclass(frozen=True)
class IndexCheck:
    """A printed index or task score, recomputed; `reach` is how far off it can be since scores are rounded or cut off.

    `kind`: printed (the printed scores give it), sources (they do not, but those of other sources do), rounding
    (unprinted digits may give it) or error (nothing gives it, or only a score other than the one printed).
    """

    pattern: str
    row: str
    task: str | None  # None: the index
    printed: str
    from_print: float
    from_sources: float
    reach: float
    kind: Literal["printed", "sources", "rounding", "error"]
    why: str = ""


def score_rows(pattern: IndexPattern) -> tuple[MeasuredRow, ...]:
    return published.measured(pattern.table).rows


def known(row: MeasuredRow, measure: Measure) -> float | None:
    """The best value available for a printed score, recomputed if it is a mean of settings; None if the run failed."""
    if measure.name not in row.printed:
        return None
    if len(measure.settings) == 1:
        return row.known(measure.name)
    settings = published.measured(SETTINGS).row(row.title)
    return statistics.fmean(settings.value(f"{setting}_{measure.metric}") for setting in measure.settings)


@cache
def index_checks() -> tuple[IndexCheck, ...]:
    """Every printed task score and index of the four patterns."""
    return tuple(check for pattern in index_constants().patterns.values() for check in _checks(pattern))


def _checks(pattern: IndexPattern) -> Iterator[IndexCheck]:
    scores = published.measured("cab-task-scores")
    for row in score_rows(pattern):
        found: dict[str, IndexCheck] = {}
        for task, measures in pattern.tasks.items():
            column = f"{pattern.code.lower()}_{task}"
            printed = scores.row(row.title).printed.get(column)
            if printed is not None:
                found[task] = check(pattern, row, task, printed, {task: measures})
        yield from found.values()
        if "ci" in row.printed:
            yield check(pattern, row, None, row.printed["ci"], pattern.tasks)


def check(
    pattern: IndexPattern, row: MeasuredRow, task: str | None, printed: str, tasks: dict[str, tuple[Measure, ...]]
) -> IndexCheck:
    """Check one printed number: the score of a task, or without a task the index over all of them."""
    counted = _index(row, tasks, as_printed=True)
    sourced = _index(row, tasks, as_printed=False)
    reach = statistics.fmean(statistics.fmean(_reach(row, m) for m in measures) for measures in tasks.values())
    target = float(printed)
    kind, why = "error", "no rounding explains it"
    wrong = [m for measures in tasks.values() for m in measures if row.is_contradicted(m.name)]
    if _reads_as(counted, target):
        kind, why = "printed", ""
    elif wrong and abs(counted - target) > reach + UNIT >= abs(sourced - target):
        measure = wrong[0]
        why = f"it needs a {measure.title} of {row.elsewhere[measure.name][0]}, {row.printed[measure.name]} is printed"
    elif _reads_as(sourced, target):
        kind, why = "sources", "the printed scores have too few digits, other sources have them"
    elif abs(sourced - target) <= reach + UNIT:
        kind, why = "rounding", f"the printed scores have too few digits: they leave ±{reach:.3f}"
    return IndexCheck(pattern.pattern, row.title, task, printed, counted, sourced, reach, kind, why)


def _index(row: MeasuredRow, tasks: dict[str, tuple[Measure, ...]], *, as_printed: bool) -> float:
    def z(measure: Measure) -> float:
        value = row.value(measure.name) if as_printed else known(row, measure)
        assert value is not None, f"{row.title} has an index without a score in {measure.name}"
        return measure.z(value / measure.factor, CONSTANTS)

    return statistics.fmean(statistics.fmean(map(z, measures)) for measures in tasks.values())


def _reach(row: MeasuredRow, measure: Measure) -> float:
    """How far, in standard deviations, the best known score can be off: some are rounded, others cut off."""
    digits = row.elsewhere[measure.name][0] if measure.name in row.elsewhere else row.printed[measure.name]
    return 2 * float(half_unit(digits)) / measure.scales[CONSTANTS].std


def _reads_as(value: float, printed: float) -> bool:
    """Whether a value, rounded or cut off at the last digit printed, reads as printed."""
    rounded = abs(value - printed) <= UNIT / 2 + SLACK
    return rounded or math.isclose(math.trunc(value / UNIT) * UNIT, printed, abs_tol=1e-9)
