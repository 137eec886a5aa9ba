"""CAB's compositional index counted again from its own tables, and where the printed numbers contradict one another.

    [check for check in index_checks() if check.kind == "error"]        # what no rounding explains
    [found.text for found in contradictions()]                          # a sentence for each

A task's score is the mean z of its metrics, an index the mean of its tasks. Each is counted twice, from the scores as
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
FIGURE = 0.3  # to which perplexities can be read off Figure 3c
SLACK = 5e-5  # what the digits of the constants leave open


@dataclass(frozen=True)
class IndexCheck:
    """A printed index or task score, counted again; `reach` is how far it can be off as scores are rounded or cut off.

    `kind`: printed (the printed scores give it), sources (they do not, but those of other sources do), rounding (digits
    that nobody printed may give it) or error (nothing does, or only another number than the one printed).
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


@dataclass(frozen=True)
class Contradiction:
    """Printed numbers that cannot all be right, in a sentence; under which patterns they stand."""

    patterns: tuple[str, ...]
    text: str


def score_rows(pattern: IndexPattern) -> tuple[MeasuredRow, ...]:
    return published.measured(pattern.table).rows


def known(row: MeasuredRow, measure: Measure) -> float | None:
    """The best value there is of a printed score: of a mean of settings, the mean; None where the run failed."""
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
                found[task] = _check(pattern, row, task, printed, {task: measures})
        yield from found.values()
        if "ci" in row.printed:
            yield _check(pattern, row, None, row.printed["ci"], pattern.tasks)


def _check(
    pattern: IndexPattern, row: MeasuredRow, task: str | None, printed: str, tasks: dict[str, tuple[Measure, ...]]
) -> IndexCheck:
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


# ------------------------------------------------------------------------------------------------------- contradictions


@cache
def contradictions() -> tuple[Contradiction, ...]:
    """Every place where a printed number contradicts another."""
    return (
        *_wrong_checks(),
        *_wrong_means(),
        *_wrong_constants(),
        *_pools(),
        *_printed_twice(),
        *_figure(),
        *_benefit(),
        *_settings(),
    )


def _wrong_checks() -> Iterator[Contradiction]:
    for check in index_checks():
        if check.kind == "error":
            what = "CI" if check.task is None else f"{index_constants().tasks[check.task]} score"
            counted = f"but the printed scores give {check.from_print:.3f}"
            text = f"{check.row}: the {what} is printed as {check.printed}, {counted}; {check.why}."
            yield _in(check.pattern, text=text)


def _in(*patterns: str, text: str) -> Contradiction:
    codes = ", ".join(index_constants().patterns[pattern].code for pattern in patterns)
    return Contradiction(patterns, f"{codes}, {text}")


def _wrong_means() -> Iterator[Contradiction]:
    """Indices that are not the mean of the task scores printed for them."""
    scores = published.measured("cab-task-scores")
    for pattern in index_constants().patterns.values():
        for row in score_rows(pattern):
            columns = [f"{pattern.code.lower()}_{task}" for task in pattern.tasks]
            if "ci" in row.printed:
                mean = statistics.fmean(scores.row(row.title).value(column) for column in columns)
                if abs(mean - row.value("ci")) > UNIT + 1e-9:
                    text = (
                        f"{row.title}: the CI is printed as {row.printed['ci']}, but its task scores give {mean:.4f}."
                    )
                    yield _in(pattern.pattern, text=text)


def _wrong_constants() -> Iterator[Contradiction]:
    """Released constants that are not those of the scores, and printed ones that are not the released."""
    for pattern in index_constants().patterns.values():
        for measure in pattern.measures:
            scale = measure.scales[CONSTANTS]
            for printed, exact in zip(measure.printed or (), (scale.mean, scale.std), strict=False):
                if abs(float(printed) - exact) >= 2 * float(half_unit(printed)):
                    text = f"{measure.title}: {printed} in {pattern.constants}, {exact} in the released script."
                    yield _in(pattern.pattern, text=text)
            if measure.released is not None and measure.released != scale:
                mean = statistics.fmean(_pool_values(pattern, measure, index_constants().pool))
                words = f"{measure.title}: the released mean is {measure.released.mean}"
                text = f"{words}, the printed scores give {mean:.5f}."
                yield _in(pattern.pattern, text=text)


def _pool_values(pattern: IndexPattern, measure: Measure, pool: tuple[str, ...]) -> list[float]:
    values = (known(row, measure) for row in score_rows(pattern) if row.title in pool)
    return [value for value in values if value is not None]


def fitting_pool(pattern: IndexPattern) -> tuple[str, ...]:
    """The mechanisms whose scores give the constants best: the pool of the paper, or one without a member of it."""
    names = [row.title for row in score_rows(pattern) if row.title in index_constants().pool]
    pools = [tuple(names), *(tuple(name for name in names if name != out) for out in names)]
    return min(pools, key=lambda pool: _misfit(pattern, pool))


def _misfit(pattern: IndexPattern, pool: tuple[str, ...]) -> float:
    """The largest distance between a constant and that of the pool, in standard deviations."""
    worst = 0.0
    for measure in pattern.measures:
        values, scale = _pool_values(pattern, measure, pool), measure.scales[CONSTANTS]
        if len(values) > 1:
            off = max(abs(statistics.fmean(values) - scale.mean), abs(statistics.stdev(values) - scale.std))
            worst = max(worst, off / scale.std)
    return worst


def _pools() -> Iterator[Contradiction]:
    for pattern in index_constants().patterns.values():
        named = {row.title for row in score_rows(pattern)} & set(index_constants().pool)
        if missing := sorted(named - set(fitting_pool(pattern))):
            words = f"the constants of {pattern.constants} leave out {', '.join(missing)}"
            text = f"{words}, which appendix E has in the pool."
            yield _in(pattern.pattern, text=text)


def _printed_twice() -> Iterator[Contradiction]:
    """Scores of vanilla attention, which is one run whatever the pattern on trial."""
    printed: dict[str, dict[str, list[str]]] = {}
    for pattern in index_constants().patterns.values():
        for column, cell in published.measured(pattern.table).row("vanilla").printed.items():
            if column != "ci":
                printed.setdefault(column, {}).setdefault(cell, []).append(pattern.pattern)
    for column, cells in printed.items():
        if len(cells) > 1:
            first = index_constants().patterns[next(iter(cells.values()))[0]]
            row = published.measured(first.table).row("vanilla")
            more = f"; {row.elsewhere[column][0]} reads as either" if column in row.elsewhere else ""
            text = f"vanilla: {first.measure(column).title} is printed as {' and as '.join(cells)}{more}."
            yield _in(*(pattern for own in cells.values() for pattern in own), text=text)


def _figure() -> Iterator[Contradiction]:
    """Perplexities of Table 3b beside those of the same models at their training length in Figure 3c."""
    figure, table = published.measured("cab-extrapolation"), published.measured("cab-cs")
    for row in figure.rows:
        printed, read = table.row(row.title).value("lm_perplexity"), row.value("ppl_8192")
        if abs(printed - read) > FIGURE:
            words = f"{row.title}: a perplexity of {printed} is printed in Table 3b"
            text = f"{words}, Figure 3c shows {read} at 8,192 tokens."
            yield _in("causal_self", text=text)


def _benefit() -> Iterator[Contradiction]:
    """Table 12 beside the scores of Table 6 that it repeats; of two tasks no constants were published."""
    scores, benefit = published.measured("cab-task-scores"), published.measured("cab-benefit")
    efficient = [title for title in index_constants().pool if title != "vanilla"]
    for column in benefit.columns:
        name = f"ns_{column.name}"
        if name in scores.row("vanilla").printed:
            rows = [scores.row(title) for title in efficient if name in scores.row(title).printed]
            best = max(rows, key=lambda row: row.value(name))
            for line, row in (("efficient attention", best), ("vanilla attention", scores.row("vanilla"))):
                printed = benefit.row(line)
                if abs(printed.value(column.name) - row.value(name)) > UNIT + 1e-9:
                    words = f"{printed.printed[column.name]} is printed for {line}"
                    text = f"Table 12, {column.title}: {words}, Table 6 has {row.printed[name]} for {row.title}."
                    yield _in("noncausal_self", text=text)


def _settings() -> Iterator[Contradiction]:
    """Means of Table 3c that are not those of the settings in the workbook."""
    pattern = index_constants().patterns["noncausal_cross"]
    for row in score_rows(pattern):
        for measure in pattern.measures:
            mean = known(row, measure)
            if len(measure.settings) > 1 and mean is not None and abs(mean - row.value(measure.name)) > UNIT + 1e-9:
                words = f"{measure.title} is printed as {row.printed[measure.name]}"
                text = f"{row.title}: {words}, but its {len(measure.settings)} settings have a mean of {mean:.4f}."
                yield _in(pattern.pattern, text=text)
