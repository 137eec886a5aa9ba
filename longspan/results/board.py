"""A board: a row per mechanism and a column per task, from cards of one protocol, tier, pattern and kind of data.

    view = board(store.cards(), suites.get("lra"), protocol="longspan", tier="full", published="lra-v1")
    print(render(view, "markdown"))                                     # results/render.py
    freeze(view, "2026-spring", folder)                                 # a snapshot that never changes

The rules, which every rendering repeats:

- A cell is the mean over seeds, with the sample standard deviation and a 95 % bootstrap interval.
- FAIL: every seed failed; or, on a task the suite names (Path-X), the mean is not above chance.
- Above chance: above the majority-class rate of that test set by three standard errors of a guess at that rate. A score
  that is no rate, such as a perplexity, is only compared with its baseline.
- Left chance: of several seeds, those that are above chance each by itself. Where some are not, as on Pathfinder, the
  mean says little; their number and the mean over them stand beside it.
- All tasks of a board are scored alike, but for those that a suite names, which are in no average, and unless it has a
  column for each of several metrics (CAB). A lower-is-better score ranks upwards, and only fractions are shown in
  percent.
- A column that is a mean of settings needs all of them; its spread is that of the seeds they have in common.
- An index is the mean z-score of each task's metrics, and then of the tasks, by constants that a paper published. A run
  that failed counts as missing: a row without a task has no index. It exists for full runs on the data of the tasks.
- Leading: above chance, and no row of the column is better by more than two standard errors of the difference, which
  join the spread over seeds and the sampling of the test set. This takes the place of bold type for a lucky best.
- An average exists over complete task sets only.
- Where the suite says so (Text under the protocols of the paper), a column shows the best of several tasks and which
  one it is; it is complete when all of them were run.
- A row is one code of a mechanism (the source of a plug-in; version and outputs of a built-in) in one precision, and
  each of its cells is from one data set. A column is one version of a task under one set of settings. The newest is
  shown, a card dated in the future counting as the oldest; the others, and overrides, are listed below with what
  differs (`alike.py`), so that no average mixes them. The device and the number of devices may differ.
- A row says whether its very code passed `longspan check` (`row_conformance.py`): one that breaks a promise is not
  ranked, leads no column and is in no summary; one that was not checked says so.
- The free track and bug-compatible twins (fidelity) stand apart and are never ranked with the others.
- Published scores are shown as printed, their averages and spreads recomputed, and printed errors flagged. They stand
  beside the fixed track only.
"""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from longspan import suites
from longspan.core import atomic
from longspan.core.errors import UsageError
from longspan.core.printable import printable
from longspan.published import PublishedTable
from longspan.results.age import by_age, is_future
from longspan.results.alike import alike, row_mechanism
from longspan.results.card import Card, canonical
from longspan.results.published_rows import (
    ColumnSpread,
    Paper,
    PaperRow,
    column_spreads,
    paper_of,
    paper_rows,
    published_table,
)
from longspan.results.row_conformance import UNCHECKED, Checks, Conformance
from longspan.results.scoring import metrics_of, score_by
from longspan.results.store import newest
from longspan.results.variant import REAL, STANDIN, data_of, in_words, kind_of
from longspan.suites import Average, Measure, Suite

CHANCE_ERRORS = 3.0
LEADING_ERRORS = 2.0
RESAMPLES = 4000
PARAMETER_RULE = 1.10  # Long Range Arena allows a mechanism ten per cent more parameters than softmax attention
MOST_LETTERS = 80  # of the name of a promise, which may come from anybody
USUAL_PATTERN = "noncausal_self"  # which titles leave out
SEVERAL_PATTERNS = "by task"  # the pattern of a row whose cells have different ones
STANDIN_NOTE = "Stand-in data: these scores say that the code runs, not how good a mechanism is."


@dataclass(frozen=True)
class BoardCell:
    """One mechanism on one task. Numbers are None unless status is ok; `missing` means no card."""

    status: Literal["ok", "fail", "missing"]
    value: float | None = None
    std: float | None = None  # over seeds; None for a single seed
    interval: tuple[float, float] | None = None
    seeds: int = 0
    failed: int = 0
    count: int | None = None  # test examples behind each seed's value
    chance: float | None = None
    above_chance: bool | None = None
    left_chance: int | None = None  # seeds that are above chance each by itself
    left_mean: float | None = None  # over these
    leading: bool = False
    steps_per_second: float | None = None
    parameters: int | None = None
    ratio: float | None = None  # parameters against the same network with softmax
    reason: str | None = None
    best: str | None = None  # the task shown, where the column shows the best of several
    lacking: tuple[str, ...] = ()  # those of them that were not run


@dataclass(frozen=True)
class Mean:
    """An average of a row, or what is missing for it."""

    value: float | None
    missing: tuple[str, ...] = ()
    leading: bool = False


@dataclass(frozen=True)
class Row:
    mechanism: str
    title: str
    pattern: str
    rank: int | None
    cells: Mapping[str, BoardCell]
    averages: Mapping[str, Mean]
    steps_per_second: float | None  # geometric mean over the tasks all rows of the board have run
    parameters: float | None  # mean over the same tasks
    ratio: float | None  # the largest over all tasks run
    note: str = ""
    conformance: Conformance = UNCHECKED
    counterpart: str | None = None  # the published row of the same attention
    differences: Mapping[str, float] = field(default_factory=dict)  # own minus published, by task and average


@dataclass(frozen=True)
class OffBoard:
    """A card that would belong here but for one reason."""

    mechanism: str
    title: str
    task: str
    seed: int
    value: float | None
    reason: str


@dataclass(frozen=True)
class Board:
    suite: Suite
    protocol: str
    tier: str
    pattern: str | None
    data: str  # "real", or what took the place of the data of the task: `variant.py`
    rows: tuple[Row, ...]
    free: tuple[Row, ...]
    fidelity: tuple[Row, ...]
    published: tuple[PaperRow, ...]
    off: tuple[OffBoard, ...]
    notes: tuple[str, ...]
    common: tuple[str, ...] = ()  # tasks behind the speed and parameter columns
    summary: Mapping[str, ColumnSpread] = field(default_factory=dict)  # over rows that break no promise, if two or more
    paper: Paper | None = None

    @property
    def title(self) -> str:
        if self.empty and self.paper:
            return shown(f"{self.suite.title} · {self.paper.title}")
        kind = f", {in_words(self.data)}" if self.data != REAL else ""
        named = self.suite.measures or self.pattern in (None, USUAL_PATTERN)
        slots = "" if named else f" · {self.pattern}"
        return shown(f"{self.suite.title} · {self.protocol} · {self.tier}{slots}{kind}")

    @property
    def standin(self) -> bool:
        return self.data == STANDIN

    @property
    def empty(self) -> bool:
        return not (self.rows or self.free or self.fidelity)


SUBSTITUTE_NOTE = "The data are {}, which stand in for those of the task: compare these scores with one another only."
SETTINGS_NOTE = "2 of 6: so many of the settings behind a mean were run; the mean needs all of them."
INDEX_NOTE = "A run that failed counts as missing, and a row without one of the tasks has no index."
NO_INDEX_NOTE = (
    "No compositional index: its constants are those of full runs on the data of the tasks. longspan analyze index "
    "makes one from the rows themselves."
)
KEPT_NOTE = "Every mechanism of this board keeps its promises (longspan check)."
DIRECTION = {True: "", False: ", lower is better"}
SMOKE_NOTE = "Smoke is a rehearsal on small data: it shows that the way from data to board works, and ranks nothing."


def board(
    cards: Iterable[Card],
    suite: Suite | str | Sequence[str],
    protocol: str,
    tier: str,
    pattern: str | None = None,
    *,
    data: str = REAL,
    published: str | None = None,
    conformance: Iterable[Mapping[str, Any]] = (),
) -> Board:
    """The board of a suite (by name or as a list of tasks) for one protocol and tier.

    A mechanism in other slots of a network does another job, so that cards of several patterns need a `pattern`.

    `data="standin"`, or the name of a known substitute, gives the board of such data, which never meets another kind.
    `published="lra-v1"` adds the rows of a paper, as published. `conformance` are results of `longspan check`
    (`results/conformance.py` loads them).
    """
    cards, checks = list(cards), Checks(conformance)
    suite = _suite(suite, cards)
    chosen = newest(
        card
        for card in cards
        if card["task"] in {*suite.tasks, *suite.tasks_under(protocol)}
        and (card["protocol"], card["tier"]) == (protocol, tier)
        and pattern in (None, card["pattern"])
        and suite.slots.get(card["task"], card["pattern"]) == card["pattern"]
        and kind_on_board(card, suite) == kind_of(data)
    )
    pattern = _only_pattern(chosen, suite) if pattern is None and not suite.slots else pattern
    suite = suite.under(pattern or USUAL_PATTERN)
    if suite.measures and (tier, kind_of(data)) != ("full", REAL):
        suite = replace(suite, averages=())
    table = published_table(published, suite)
    columns = Columns(suite, protocol)
    chosen = [card for card in chosen if card["task"] in {*suite.tasks, *columns.of}]
    if table and pattern not in (None, table.pattern):
        table = None  # the paper ran other slots
    official = [(card, _reason_to_stay_off(card, suite, columns)) for card in chosen]
    several = bool(suite.slots)
    kept, others = alike((card for card, reason in official if reason is None), several_patterns=several)
    off = [_off(card, reason) for card, reason in (*((c, r) for c, r in official if r is not None), *others)]
    oversized = {_row_key(card, suite) for card in kept if card["parameters"]["within_rule"] is False}
    groups: dict[str, list[Card]] = defaultdict(list)
    for card in kept:
        if card["fidelity"]:
            groups["fidelity"].append(card)
        elif card["track"] == "free" or _row_key(card, suite) in oversized:
            groups["free"].append(card)
        else:
            groups["rows"].append(card)
    passed = {key: checks.of(own) for key, own in _by_row(kept, suite).items()}
    sound = [card for card in kept if passed[_row_key(card, suite)].status != "broken"]
    common = _common_columns(sound or kept, columns)
    sections = {
        name: _rows(groups[name], columns, common, passed, rank=name != "fidelity")
        for name in ("rows", "free", "fidelity")
    }
    beside = paper_rows(table, suite)
    for name in ("rows", "fidelity"):  # the rules forbid it for the free track
        sections[name] = tuple(_with_counterpart(row, table, beside) for row in sections[name])
    return Board(
        suite=suite,
        protocol=protocol,
        tier=tier,
        pattern=pattern,
        data=kind_of(data),
        published=beside,
        off=tuple(off),
        notes=tuple(_notes(kept, passed, columns, common, data, table, f"{protocol}, {tier}")),
        common=common,
        summary=_spreads(sections["rows"], suite),
        paper=paper_of(table, beside, suite),
        **sections,
    )


def _only_pattern(cards: Sequence[Card], suite: Suite) -> str | None:
    """The pattern that all cards have; None where there is no card."""
    patterns = sorted({card["pattern"] for card in cards})
    if len(patterns) > 1:
        raise UsageError(
            f"One board of {suite.name} was asked for runs of several patterns ({shown(', '.join(patterns))}), which "
            "do not compare; make a board of each with pattern."
        )
    return patterns[0] if patterns else None


def _suite(suite: Suite | str | Sequence[str], cards: Sequence[Card]) -> Suite:
    if isinstance(suite, Suite):
        return suite
    if isinstance(suite, str):
        return suites.get(suite)
    alike, *others = suites_of(suite, cards)
    if others:
        ways = "; ".join(f"{', '.join(one.tasks)} by {one.metric}" for one in (alike, *others))
        raise UsageError(f"One board was asked for tasks that are scored differently ({ways}); make a board of each.")
    return alike


def suites_of(tasks: Sequence[str], cards: Iterable[Card]) -> list[Suite]:
    """The tasks as unnamed suites, one for each way of scoring that their newest cards have."""
    scoring: dict[str, tuple] = {}
    for card in sorted(by_age(cards), key=lambda card: (not is_future(card), card["task_version"])):
        if score := card["score"]:
            scoring[card["task"]] = shown(score["name"]), score["higher_is_better"], score.get("unit", "percent")
    alike: dict[tuple, list[str]] = defaultdict(list)
    for task in tasks:
        alike[scoring.get(task) or suites.usual_score(task)].append(task)
    return [suites.of_tasks(names, *way) for way, names in alike.items()]


def _reason_to_stay_off(card: Card, suite: Suite, columns: "Columns") -> str | None:
    if card["task"] not in columns.of:
        behind = columns.behind[card["task"]]
        return f"the column shows {'the best of ' if len(behind) > 1 else ''}{', '.join(behind)}"
    if card["overrides"]:
        return "settings were overridden: " + ", ".join(f"{key}={value}" for key, value in card["overrides"].items())
    if card["score"] and suite.measures:
        asked = {measure.metric for measure in suite.measures if card["task"] in measure.settings}
        lacking = sorted(asked - metrics_of(card))
        return f"without {', '.join(lacking)}" if lacking else None
    metric = suite.measure(columns.of[card["task"]]).metric
    if card["score"] and shown(card["score"]["name"]) != metric:
        return f"scored by {card['score']['name']}, the suite by {metric}"
    return None


def _off(card: Card, reason: str) -> OffBoard:
    value = card["score"]["value"] if card["score"] else None
    return OffBoard(shown(card["mechanism"]), shown(card["title"]), card["task"], card["seed"], value, shown(reason))


def shown(text: str) -> str:
    """Text from a card without control characters or direction overrides, safe to print in a terminal."""
    return printable(text, keep="")


# ------------------------------------------------------------------------------------------------------ rows and cells


class Columns:
    """The columns of a board under one protocol, and the tasks behind each."""

    def __init__(self, suite: Suite, protocol: str):
        self.suite, self.behind = suite, suite.sources(protocol)
        self.of = {task: column for column, tasks in self.behind.items() for task in tasks}
        self.notes = [
            f"{suites.heading(one.task)}: {one.note}."
            for one in suite.best_of
            if protocol in one.protocols and one.note
        ]


def kind_on_board(card: Card, suite: Suite) -> str:
    """The kind of data of the board on which a suite shows a card."""
    kind = data_of(card)
    return REAL if kind == STANDIN and card["task"] in suite.standins else kind


def _row_key(card: Card, suite: Suite) -> tuple[str, str]:
    return row_mechanism(card), SEVERAL_PATTERNS if suite.slots else card["pattern"]


def _by_row(cards: Iterable[Card], suite: Suite) -> dict[tuple[str, str], list[Card]]:
    rows: dict[tuple[str, str], list[Card]] = defaultdict(list)
    for card in cards:
        rows[_row_key(card, suite)].append(card)
    return rows


def _common_columns(cards: Iterable[Card], columns: Columns) -> tuple[str, ...]:
    """One column for each task that every row of the board has run: the only ones over which speeds may be compared.

    The best of several tasks is another one for each row, so that speeds of that column do not compare.
    """
    good = (card for card in cards if card["status"] == "ok")
    ran = [{card["task"] for card in own} for own in _by_row(good, columns.suite).values()]
    everywhere = set.intersection(*ran) if ran else set()
    suite, behind = columns.suite, columns.behind
    each = [column for column in _a_column_each(suite) if suite.measures or len(behind[column]) == 1]
    return tuple(column for column in each if {*behind[column]} <= everywhere)


def _a_column_each(suite: Suite) -> tuple[str, ...]:
    """The first column of every task: all its metrics are of the same runs."""
    return tuple({suite.measure(column).settings: column for column in reversed(suite.columns)}.values())[::-1]


def _rows(
    cards: list[Card],
    columns: Columns,
    common: tuple[str, ...],
    passed: Mapping[tuple[str, str], Conformance],
    rank: bool,
) -> tuple[Row, ...]:
    """Rows that keep their promises or were not checked, best first, then those that break one."""
    suite, rows = columns.suite, []
    for (mechanism, pattern), of_row in _by_row(cards, suite).items():
        some, found = of_row[-1], passed[mechanism, pattern]
        shown_in = _mean_of_settings if suite.measures else _best
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
                steps_per_second=_geometric_mean(speeds),
                parameters=statistics.fmean(sizes) if sizes and None not in sizes else None,  # type: ignore[type-var]
                ratio=max(ratios, default=None),
                note="more than 10 % above the parameters of softmax" if over else "",
                conformance=replace(found, broken=tuple(shown(name)[:MOST_LETTERS] for name in found.broken)),
            )
        )
    sound = [row for row in rows if row.conformance.status != "broken"]
    broken = [row for row in rows if row.conformance.status == "broken"]
    return *_ranked(_with_leaders(sound, suite), suite, rank), *_ranked(broken, suite, rank=False)


def _best(cards: list[Card], suite: Suite, column: str, tasks: tuple[str, ...]) -> BoardCell:
    """The cell of one task, or the best of several, with what it lacks of them."""
    found = {task: _cell([card for card in cards if card["task"] == task], suite, column) for task in tasks}
    if len(tasks) == 1:
        cell = found[tasks[0]]
        return replace(cell, lacking=tasks) if cell.status == "missing" and tasks[0] != column else cell
    sign = 1 if suite.measure(column).higher_is_better else -1
    good = {task: sign * cell.value for task, cell in found.items() if cell.status == "ok" and cell.value is not None}
    failed = [task for task, cell in found.items() if cell.status == "fail"]
    best = max(good, key=good.__getitem__) if good else failed[0] if failed else tasks[0]
    lacking = tuple(task for task, cell in found.items() if cell.status == "missing")
    return replace(found[best], best=best if good else None, lacking=lacking)


def _mean_of_settings(cards: list[Card], suite: Suite, column: str, tasks: tuple[str, ...]) -> BoardCell:
    """The cell of a metric: of one task, or its mean over all of several settings."""
    found = {task: _cell([card for card in cards if card["task"] == task], suite, column) for task in tasks}
    if len(tasks) == 1:
        return found[tasks[0]]
    lacking = tuple(task for task, cell in found.items() if cell.status == "missing")
    cells = [cell for cell in found.values() if cell.status != "missing"]
    if lacking:
        return BoardCell("missing", lacking=lacking if cells else ())
    sizes, speeds = [cell.parameters for cell in cells], [cell.steps_per_second for cell in cells]
    cost = {
        "parameters": round(statistics.fmean(size for size in sizes if size is not None)) if sizes else None,
        "steps_per_second": _geometric_mean(speeds),
        "ratio": max((cell.ratio for cell in cells if cell.ratio is not None), default=None),
        "failed": max(cell.failed for cell in cells),
    }
    if bad := [f"{task}: {cell.reason}" for task, cell in found.items() if cell.status == "fail"]:
        return BoardCell("fail", reason="; ".join(bad), **cost)
    by_seed: dict[int, list[float]] = defaultdict(list)
    for card in cards:
        if card["task"] in tasks and card["status"] == "ok":
            by_seed[card["seed"]].append(score_by(card, suite.measure(column).metric)["value"])  # type: ignore[index]
    means = [statistics.fmean(values) for values in by_seed.values() if len(values) == len(tasks)]
    return BoardCell(
        "ok",
        value=statistics.fmean(cell.value for cell in cells if cell.value is not None),
        std=statistics.stdev(means) if len(means) > 1 else None,
        interval=bootstrap_interval(means),
        seeds=min(cell.seeds for cell in cells),
        count=min(cell.count for cell in cells if cell.count is not None),
        **cost,
    )


def _cell(cards: list[Card], suite: Suite, column: str) -> BoardCell:
    if not cards:
        return BoardCell("missing")
    measure = suite.measure(column)
    good = [card for card in cards if card["status"] == "ok"]
    cost = {
        "steps_per_second": _geometric_mean([_speed(card) for card in good]),
        "parameters": cards[-1]["parameters"]["total"],
        "ratio": cards[-1]["parameters"]["ratio"],
    }
    failed = len(cards) - len(good)
    if not good:
        return BoardCell("fail", failed=failed, reason=shown(cards[-1]["reason"] or "the run failed"), **cost)
    scores = [score_by(card, measure.metric) or card["score"] if suite.measures else card["score"] for card in good]
    values = [score["value"] for score in scores]
    value, count = statistics.fmean(values), min(score["count"] for score in scores)
    chances = [score["chance"] for score in scores]
    chance = statistics.fmean(chances) if None not in chances else None
    above = _is_above(value, chance, count, measure)
    left = [score["value"] for score in scores if _is_above(score["value"], chance, count, measure)]
    cell = BoardCell(
        "ok",
        value=value,
        std=statistics.stdev(values) if len(values) > 1 else None,
        interval=bootstrap_interval(values),
        seeds=len(values),
        failed=failed,
        count=count,
        chance=chance,
        above_chance=above,
        left_chance=None if above is None else len(left),
        left_mean=statistics.fmean(left) if left else None,
        **cost,
    )
    if column in suite.fail_at_chance and above is False:
        return replace(cell, status="fail", reason=f"not above chance ({100 * value:.2f} % of {count} examples)")
    return cell


def _is_above(value: float, chance: float | None, count: int, measure: Measure) -> bool | None:
    """Whether a score is above chance; where it is no rate, chance is a baseline of which no sampling is known."""
    if measure.metric == "accuracy":
        return is_above_chance(value, chance, count, measure.higher_is_better)
    return None if chance is None else value > chance if measure.higher_is_better else value < chance


def is_above_chance(value: float, chance: float | None, count: int, higher_is_better: bool = True) -> bool | None:
    """Whether a rate lies above the majority-class rate by three standard errors; None where chance is not known.

    >>> is_above_chance(0.53, 0.5, 2000), is_above_chance(0.54, 0.5, 2000)
    (False, True)
    """
    if chance is None or count < 1 or not 0 <= chance <= 1 or not higher_is_better:
        return None
    return value - chance > CHANCE_ERRORS * math.sqrt(chance * (1 - chance) / count)


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % percentile interval of the mean under resampling of seeds, the same at every call; None below two seeds."""
    if len(values) < 2:
        return None
    draws = np.random.default_rng(0).choice(np.asarray(values, dtype=float), size=(RESAMPLES, len(values)))
    low, high = np.quantile(draws.mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def _standard_error(cell: BoardCell, metric: str) -> float:
    seeds = (cell.std or 0.0) ** 2 / max(cell.seeds, 1)
    value = cell.value or 0.0
    sampling = value * (1 - value) / cell.count if metric == "accuracy" and cell.count else 0.0
    return math.sqrt(seeds + sampling)


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


def _speed(card: Card) -> float | None:
    """Steps per second, unless other work shared the device and the figure says little."""
    return None if card["timing"].get("shared") else card["timing"]["steps_per_second"]


def _geometric_mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value]
    return statistics.geometric_mean(numbers) if numbers and len(numbers) == len(values) else None


# --------------------------------------------------------------------------------------------------- leaders and ranks


def _with_leaders(rows: list[Row], suite: Suite) -> list[Row]:
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


def _average_error(errors: Mapping[str, float], suite: Suite, average: Average) -> float:
    """The standard error of an average; the metrics of one task are of the same runs, so that their errors add up."""
    by_task: dict[str, float] = defaultdict(float)
    for column, weight in suite.weights(average).items():
        measure = suite.measure(column)
        scale = measure.factor / measure.scales[average.constants].std if average.constants else 1.0
        by_task[measure.task] += weight * scale * errors[column]
    return math.hypot(*by_task.values())


def _leading(entries: Mapping[tuple, tuple[float | None, float]], higher_is_better: bool) -> set:
    """Keys within two standard errors of the best value."""
    sign = 1 if higher_is_better else -1
    known = {key: (sign * value, error) for key, (value, error) in entries.items() if value is not None}
    if not known:
        return set()
    best, best_error = max(known.values())
    return {k for k, (v, e) in known.items() if v == best or best - v <= LEADING_ERRORS * math.hypot(e, best_error)}


def _ranked(rows: list[Row], suite: Suite, rank: bool) -> tuple[Row, ...]:
    """Complete rows by their first average, then the others by how much they have and how good that is.

    Where there is one column and no average, it is what ranks.
    """
    sign = -1 if suite.higher_is_better else 1
    first = suite.averages[0].name if suite.averages else None
    spreads = _spreads(rows, suite) if suite.measures else {}

    def standing(column: str, value: float) -> float:
        """A score that compares with those of other columns."""
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


# -------------------------------------------------------------------------------------------- papers, notes, snapshots


def _with_counterpart(row: Row, table: PublishedTable | None, beside: Sequence[PaperRow]) -> Row:
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


def _spreads(rows: Sequence[Row], suite: Suite) -> dict[str, ColumnSpread]:
    """Mean and deviation over the ranked rows of every column in which two or more have a number."""
    rows = [row for row in rows if row.conformance.status != "broken"]
    columns: dict[str, list[float | None]] = {
        task: [row.cells[task].value if row.cells[task].status == "ok" else None for row in rows]
        for task in suite.columns
    }
    columns |= {average.name: [row.averages[average.name].value for row in rows] for average in suite.averages}
    return column_spreads(columns)


def _notes(
    cards: list[Card],
    passed: Mapping[tuple[str, str], Conformance],
    columns: Columns,
    common: tuple[str, ...],
    data: str,
    table: PublishedTable | None,
    rules: str,
) -> list[str]:
    """What a reader must know to read the numbers of this board."""
    suite, notes = columns.suite, []
    if table and not cards:
        notes.append(
            f"No runs of {suite.name} ({rules}) here yet; make some with longspan run {suite.name} -a softmax."
        )
    if data == STANDIN:
        notes.append(STANDIN_NOTE)
    elif kind_of(data) != REAL:
        notes.append(SUBSTITUTE_NOTE.format(data))
    for task in columns.of:
        hashes = {card["dataset"]["sha256"] for card in cards if card["task"] == task}
        if len(hashes) > 1:
            notes.append(f"{task}: the cards come from {len(hashes)} different data sets, so compare with care.")
    if cards:
        notes.extend(columns.notes)
    if forms := _forms(cards):
        notes.append(f"Options are those the protocol has for the task: {forms}.")
    precisions = sorted({str(card["settings"]["precision"]) for card in cards})
    if len(precisions) > 1:
        notes.append(f"Rows were run in different precisions ({shown(', '.join(precisions))}), so compare with care.")
    if cards:
        notes.extend(
            f"{task} is scored by {one.metric}{DIRECTION[one.higher_is_better]}." for task, one in suite.scored.items()
        )
        if made_up := sorted(
            {card["task"] for card in cards if data_of(card) == STANDIN and card["task"] in suite.standins}
        ):
            notes.append(f"{', '.join(made_up)}: on stand-in data; compare these scores with one another only.")
    if suite.slots:
        notes.append(f"Slots: {'; '.join(f'{task} {pattern}' for task, pattern in suite.slots.items())}.")
    if any(card["tier"] == "smoke" for card in cards):
        notes.append(SMOKE_NOTE)
    if passed and all(found.status == "kept" for found in passed.values()):
        notes.append(KEPT_NOTE)
    devices = sorted({device_of(card) for card in cards})
    if len(devices) > 1:
        notes.append(f"Steps per second come from different devices ({'; '.join(devices)}) and do not compare.")
    if len({card["seed"] for card in cards}) == 1:
        known = (
            "the sampling of the test set, not"
            if suite.metric == "accuracy"
            else "neither the sampling of the data nor"
        )
        notes.append(f"One seed per cell: the marks know {known} the luck of training.")
    if common and common != _a_column_each(suite):
        over = dict.fromkeys(task for column in common for task in suite.measure(column).settings)
        notes.append(f"Steps per second and parameters are over the tasks all rows have run: {', '.join(over)}.")
    ran = {card["task"] for card in cards}
    if any(ran & {*measure.settings} and not ran >= {*measure.settings} for measure in suite.measures):
        notes.append(SETTINGS_NOTE)
    if suite.measures and (cards or table):
        notes.append(INDEX_NOTE if suite.averages else NO_INDEX_NOTE)
    if len(suite.averages) > 1:
        notes.extend(f"{average.title}: {average.note}." for average in suite.averages)
    if table:
        notes.append(f"Published rows: {table.title}, {table.source}, {table.period}. {table.note}")
        notes.append("Published scores are as printed; their averages are recomputed, and printed errors flagged.")
    return notes


def _forms(cards: Iterable[Card]) -> str:
    """The mechanisms whose options the protocol chooses by the task: "lra_local(block=64) on image, pathfinder"."""
    tasks: dict[str, list[str]] = defaultdict(list)
    for card in cards:
        if card["mechanism"] != row_mechanism(card):
            tasks[shown(card["mechanism"])].append(card["task"])
    return "; ".join(f"{form} on {', '.join(dict.fromkeys(own))}" for form, own in tasks.items())


def device_of(card: Card) -> str:
    """The device of a run in words: the GPU's name where there is one, else the processor's."""
    environment, device = card["environment"], str(card["settings"]["device"])
    name = environment.get("gpu") if device.startswith(("cuda", "gpu")) else environment.get("cpu")
    return shown(str(name or device))


LEFT_CHANCE = "left chance"
RULES = (
    "± is the sample standard deviation over seeds.",
    "● leads its column: above chance, and no row is better by more than two standard errors of the difference.",
    "° is not above chance: the majority-class rate of the test set plus three standard errors; "
    "where the score is no rate, no better than its baseline.",
    f"n of m {LEFT_CHANCE}: so many seeds are above chance by this rule, each by itself; their mean follows.",
    "FAIL: every seed failed, or the mean is not above chance on a task where the suite demands it.",
    "An average is shown over complete task sets only.",
    "A row is one code in one precision, a column one set of settings: the newest; others are listed below.",
    "✗ breaks a promise of longspan check, named below, and is not ranked.",
    "? is unchecked: there is no result of longspan check for this very code.",
)


def as_data(view: Board) -> dict:
    """The board as plain JSON data."""
    plain = json.loads(json.dumps(asdict(view)))
    return {"schema": 1, "kind": "board", **plain, "standin": view.standin, "rules": list(RULES)}


def freeze(view: Board, name: str, folder: str | Path) -> Path:
    """Write a named snapshot. Freezing the same board again is harmless; another board under the name is refused."""
    if not name or not all(letter.isalnum() or letter in "-_." for letter in name) or name.startswith("."):
        raise UsageError(f"A snapshot name has letters, digits, '-', '_' and '.' only, got {name!r}.")
    path = Path(folder) / f"{name}.json"
    content = {"snapshot": name, **as_data(view)}
    if path.exists():
        if canonical(json.loads(path.read_text(encoding="utf-8"))) != canonical(content):
            raise UsageError(f"Snapshot {name!r} is frozen with other content at {path}; choose a new name.")
        return path
    atomic.write_json(path, content)
    return path
