"""The compositional index of our runs: by the published constants where they apply, else by those of their own pool.

The published means and deviations are of full runs on the tasks' data. Runs of another tier, or on substitute data, are
scored by the mean and the sample standard deviation of their own pool: at least five mechanisms that have the metric. A
task or a setting that fewer have is left out, and a note says so; a row that lacks one of the others has no index.
Indices of different pools do not compare. A network without attention is no mechanism and in no pool (`benefit.py`).
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from longspan import suites
from longspan.analysis.cards import name_of
from longspan.analysis.comparable import ABLATIONS
from longspan.core.printable import shown
from longspan.published.index_constants import Measure, Scale, index_constants
from longspan.results.alike import row_mechanism
from longspan.results.board_cells import RESAMPLES
from longspan.results.card import Card
from longspan.results.scoring import score_by
from longspan.results.variant import REAL, STANDIN, data_of

SUITE = "cab"
MIN_POOL = 5
OWN = "own pool"


@dataclass(frozen=True)
class IndexRow:
    """An index with the scores of its tasks. Rows of the same pattern, origin and constants compare."""

    pattern: str
    title: str
    mechanism: str
    origin: str
    constants: str
    tasks: Mapping[str, float]
    interval: tuple[float, float] | None = None
    seeds: int | None = None  # the fewest behind a task; None: not stated
    printed: str = ""
    verdict: str = ""

    @property
    def index(self) -> float:
        return statistics.fmean(self.tasks.values())

    def without(self, task: str) -> float:
        """The index over the other tasks."""
        return statistics.fmean(score for name, score in self.tasks.items() if name != task)

    @property
    def pool(self) -> tuple[str, str, str]:
        return self.pattern, self.origin, self.constants


Runs = Mapping[str, Mapping[str, list[Card]]]  # finished runs of one kind of data by setting, then by mechanism


def own_rows(runs: Iterable[Card]) -> tuple[list[IndexRow], list[str]]:
    """Every index that the runs allow, and notes on what was left out of each."""
    groups: dict[tuple[str, str, str], list[Card]] = defaultdict(list)
    for card in runs:
        if _counts(card):
            groups[card["pattern"], card["protocol"], card["tier"]].append(card)
    rows, notes = [], []
    order = list(index_constants().patterns)
    for (pattern, protocol, tier), cards in sorted(groups.items(), key=lambda item: (order.index(item[0][0]), item[0])):
        suite = suites.get(SUITE).patterns[pattern]
        settings = _settings(cards)
        origin = shown(f"{protocol} · {tier}")
        if tier == "full":
            real = {setting: kinds[REAL] for setting, kinds in settings.items() if REAL in kinds}
            for constants in index_constants().versions:
                rows += _rows(pattern, origin, constants, suite.measures, real)
        chosen = {setting: kinds[_kind(kinds)] for setting, kinds in settings.items()}
        measures = [measure for one in suite.measures if (measure := _own_scale(one, chosen))]
        if measures:
            found = _rows(pattern, origin, OWN, measures, chosen)
            rows += found
            notes.append(_about(pattern, origin, suite.measures, measures, settings, len(found)))
    return rows, notes


def _counts(card: Card) -> bool:
    patterns = suites.get(SUITE).patterns
    return (
        card["pattern"] in patterns
        and card["task"] in patterns[card["pattern"]].tasks
        and card["status"] == "ok"
        and card["mechanism"] not in ABLATIONS
        and not card["overrides"]
        and card["track"] == "fixed"
        and not card["fidelity"]
        and data_of(card) != STANDIN
    )


def _settings(cards: Sequence[Card]) -> Mapping[str, Mapping[str, Mapping[str, list[Card]]]]:
    """Runs by setting, kind of data and mechanism."""
    found: dict = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for card in cards:
        found[card["task"]][data_of(card)][row_mechanism(card)].append(card)
    return found


def _kind(kinds: Mapping[str, Mapping[str, list[Card]]]) -> str:
    """The data that most mechanisms ran on, the real ones before a substitute."""
    return max(kinds, key=lambda kind: (len(kinds[kind]), kind == REAL, kind))


def _own_scale(measure: Measure, runs: Runs) -> Measure | None:
    """The measure over the settings that enough mechanisms have, with their pool's scale; None if there are none."""
    settings = tuple(one for one in measure.settings if len(runs.get(one, {})) >= MIN_POOL)
    own = replace(measure, settings=settings)
    values = [measure.factor * statistics.fmean(seeds) for seeds in by_mechanism(own, runs).values()]
    if len(values) < MIN_POOL or not (std := statistics.stdev(values)) > 0:
        return None
    return replace(own, scales={OWN: Scale(statistics.fmean(values), std)})


def by_mechanism(measure: Measure, runs: Runs) -> dict[str, list[float]]:
    """For every mechanism that has all settings, its mean over them: one for each shared seed, else a single one."""
    found = {}
    if not measure.settings:
        return found
    for mechanism in set.intersection(*(set(runs.get(setting, {})) for setting in measure.settings)):
        scores = [
            {c["seed"]: score["value"] for c in runs[setting][mechanism] if (score := score_by(c, measure.metric))}
            for setting in measure.settings
        ]
        if all(scores):
            seeds = sorted(set.intersection(*map(set, scores)))
            found[mechanism] = [statistics.fmean(one[seed] for one in scores) for seed in seeds] or [
                statistics.fmean(statistics.fmean(one.values()) for one in scores)
            ]
    return found


def _rows(pattern: str, origin: str, constants: str, measures: Sequence[Measure], runs: Runs) -> list[IndexRow]:
    """An index for every mechanism that has a score in each measure."""
    scores = {measure.name: by_mechanism(measure, runs) for measure in measures}
    names = list(dict.fromkeys(measure.task for measure in measures))
    rows = []
    for mechanism in sorted(set.intersection(*(set(own) for own in scores.values()))):
        z = {m.name: [m.z(score, constants) for score in scores[m.name][mechanism]] for m in measures}
        tasks = {
            task: statistics.fmean(statistics.fmean(z[measure.name]) for measure in measures if measure.task == task)
            for task in names
        }
        card = runs[measures[0].settings[0]][mechanism][-1]
        plain = shown(card["title"]) if card.get("preset") else name_of(card)
        rows.append(
            IndexRow(
                pattern,
                plain,
                shown(mechanism),
                origin,
                constants,
                tasks,
                interval=_interval(measures, z),
                seeds=min(map(len, z.values())),
            )
        )
    return rows


def _interval(measures: Sequence[Measure], z: Mapping[str, Sequence[float]]) -> tuple[float, float] | None:
    """The 95 % interval of the index under resampling of seeds, deterministic; None where a task has one seed.

    Metrics of one run are resampled together; the constants stay fixed.
    """
    if min(map(len, z.values())) < 2:
        return None
    random, index = np.random.default_rng(0), np.zeros(RESAMPLES)
    by_runs: dict[tuple[str, ...], list[Measure]] = defaultdict(list)
    for measure in measures:
        by_runs[measure.settings].append(measure)
    size = {task: sum(m.task == task for m in measures) for task in {m.task for m in measures}}
    for own in by_runs.values():
        parts = np.sum([np.asarray(z[m.name]) / (len(size) * size[m.task]) for m in own], axis=0)
        index += random.choice(parts, size=(RESAMPLES, len(parts))).mean(axis=1)
    low, high = np.quantile(index, [0.025, 0.975])
    return float(low), float(high)


def _about(
    pattern: str,
    origin: str,
    asked: Sequence[Measure],
    used: Sequence[Measure],
    settings: Mapping[str, Mapping[str, Mapping[str, list[Card]]]],
    rows: int,
) -> str:
    """A note on what an index over our own pool is made of, and what was left out of it."""
    known = index_constants()
    scales = "; ".join(
        f"{measure.title} {measure.scales[OWN].mean:.4g} ± {measure.scales[OWN].std:.3g}" for measure in used
    )
    inside = dict.fromkeys(setting for measure in used for setting in measure.settings)
    outside = dict.fromkeys(s for measure in asked for s in measure.settings if s not in inside)
    data = {setting: _kind(settings[setting]) for setting in inside}
    other = [f"{setting} on {kind} data" for setting, kind in data.items() if kind != REAL]
    words = [f"{known.patterns[pattern].code}, {origin}, {OWN} of {rows}: {scales}"]
    words += [", ".join(other)] if other else []
    words += [f"out for want of {MIN_POOL} mechanisms: {', '.join(outside)}"] if outside else []
    return shown("; ".join(words) + ".")
