"""Where CAB's printed numbers contradict one another: in its index, its constants, its tables and its figures.

[found.text for found in contradictions()]        # a sentence for each
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from longspan import published
from longspan.published.index_audit import CONSTANTS, UNIT, index_checks, known, score_rows
from longspan.published.index_constants import IndexPattern, Measure, index_constants
from longspan.published.measurement import half_unit

FIGURE = 0.3  # how exactly perplexities can be read off Figure 3c


@dataclass(frozen=True)
class Contradiction:
    """Printed numbers that cannot all be right, in a sentence, and the patterns they are printed under."""

    patterns: tuple[str, ...]
    text: str


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
    """Released constants that do not follow from the scores, and printed ones that differ from the released."""
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
    """The mechanisms whose scores reproduce the constants best: the paper's pool, or that pool without one member."""
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
    """Scores of vanilla attention, which is one run whatever pattern is tested."""
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
    """Table 12 beside the scores of Table 6 that it repeats; for two tasks no constants were published."""
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
