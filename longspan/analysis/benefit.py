"""What is attention good for? Runs without it beside softmax and the best efficient mechanism, slot by slot.

CAB's Table 12 and Figure 3b, and the same from our runs: a run of `none` in the slots of one pattern, beside runs of
softmax and of the efficient mechanisms in the same slots: those that do not declare n², and those that CAB itself calls
efficient. The benefit is how much better softmax is, signed so that more is better, with a paired bootstrap over test
examples and seeds, or over seeds alone without per-example predictions.

CAB's tasks are also scored by its index: full runs on the task's data with the published constants where there are any,
others with the mean and sample standard deviation over runs of CAB's ten mechanisms in these slots, at least five of
them and without `none`. CAB published no constants for point clouds and forecasting in these slots.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from longspan import published
from longspan.analysis.cards import Evidence, name_of
from longspan.analysis.finding import Column, Finding
from longspan.analysis.own_index import MIN_POOL, OWN, by_mechanism
from longspan.analysis.paired import Scores, block_of, interval, paired_draws, scores_of
from longspan.core.printable import shown
from longspan.published.index_constants import Measure, Scale, index_constants
from longspan.results import catalogue
from longspan.results.alike import row_mechanism
from longspan.results.card import Card
from longspan.results.collect import pattern_order
from longspan.results.variant import REAL, STANDIN, data_of

WITHOUT, EXACT = "none", "softmax"
CONSTANTS = "cab-2023"
UNIT = 0.0015  # Table 12 truncates the digits of the Table 6 scores that it repeats
UNPUBLISHED = {"noncausal_self": ("pcc", "lstf")}  # tasks of Table 12 whose metrics are those of another pattern
COLUMNS = (
    Column("From", context=True),
    Column("Task"),
    Column("Pattern", "text", "of the slots that were emptied", context=True),
    Column("Scored by"),
    Column("Without", "text", "the sublayer adds nothing; mean and deviation over seeds"),
    Column("Softmax", "text", "mean and deviation over seeds"),
    Column("Best efficient", "text", "mean and deviation over seeds"),
    Column("Benefit", "text", "how much better softmax is than nothing"),
    Column("95 % interval", "text", "of the benefit"),
    Column("Attention", "text", "helps or hurts where the interval leaves out 0"),
)


@dataclass(frozen=True)
class Side:
    """One of the three that are compared: its score for every seed, in the unit shown."""

    title: str
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)


@dataclass(frozen=True)
class Benefit:
    """What emptying the slots costs on a task; `without` is None where the run failed."""

    origin: str
    task: str
    pattern: str
    scored_by: str
    without: Side | None
    softmax: Side
    best: Side | None
    higher_is_better: bool = True
    spell: Callable[[float], str] = "{:.3f}".format
    interval: tuple[float, float] | None = None  # of the benefit
    word: str = ""  # in place of a verdict

    @property
    def benefit(self) -> float | None:
        if self.without is None:
            return None
        return (1 if self.higher_is_better else -1) * (self.softmax.mean - self.without.mean)

    @property
    def verdict(self) -> str:
        if self.word or self.interval is None:
            return self.word or "open: one number each"
        low, high = self.interval
        return "helps" if low > 0 else "hurts" if high < 0 else "open"

    @property
    def row(self) -> tuple:
        best = "–" if self.best is None else f"{self._text(self.best)}, {self.best.title}".removesuffix(", ")
        ends = "–" if self.interval is None else " to ".join(map(self._signed, self.interval))
        benefit = "–" if self.benefit is None else self._signed(self.benefit)
        sides = (self._text(self.without), self._text(self.softmax), best)
        return (self.origin, self.task, self.pattern, self.scored_by, *sides, benefit, ends, self.verdict)

    def _text(self, side: Side | None) -> str:
        if side is None:
            return "failed"
        spread = f" ± {self.spell(statistics.stdev(side.values))}" if len(side.values) > 1 else ""
        return self.spell(side.mean) + spread

    def _signed(self, value: float) -> str:
        return f"{'-' if value < 0 else '+'}{self.spell(abs(value))}"


def answer(evidence: Evidence) -> Finding:
    notes: list[str] = []
    own = [found for cards in _groups(evidence.runs) for found in _own(evidence, cards, notes)]
    if not own:
        notes.append(
            "No own run without attention stands beside one of softmax; make both with longspan run TASK -a softmax "
            "none --pattern P."
        )
    found = [*own, *_indices(evidence.runs), *_published()]
    notes.append(published.measured("cab-benefit").note)
    notes.append("CAB prints no spread over seeds, so that no benefit of its table is tested.")
    if own:
        notes.append("A network without attention also has fewer parameters.")
    return Finding(
        "benefit",
        "Benefit of attention",
        "Scores without attention in the slots of a pattern, with softmax, and with the best efficient mechanism.",
        COLUMNS,
        tuple(one.row for one in found),
        tuple(dict.fromkeys(notes)),
        tuple(found),
    )


def _groups(runs: Sequence[Card]) -> Iterator[list[Card]]:
    """Finished runs of one task under one set of rules in the slots of one pattern."""
    groups: dict[tuple, list[Card]] = defaultdict(list)
    for card in runs:
        if card["status"] == "ok" and not card["overrides"] and not card["fidelity"]:
            rules = (card["protocol"], card["tier"], data_of(card), card["task"])
            groups[(*rules, *pattern_order(card["pattern"]), card["dataset"]["sha256"])].append(card)
    yield from (groups[key] for key in sorted(groups))


def _own(evidence: Evidence, cards: Sequence[Card], notes: list[str]) -> Iterator[Benefit]:
    """The score of the task itself; nothing where softmax or `none` is missing."""
    seeds: dict[str, list[Card]] = defaultdict(list)
    for card in cards:
        seeds[row_mechanism(card)].append(card)
    if WITHOUT not in seeds or EXACT not in seeds:
        return
    score = cards[0]["score"]
    higher, percent = score["higher_is_better"], score.get("unit", "percent") == "percent"
    scale, sign = 100.0 if percent else 1.0, 1 if score["higher_is_better"] else -1
    sides = {
        name: Side(_title(own[0]), tuple(scale * card["score"]["value"] for card in own)) for name, own in seeds.items()
    }
    efficient = [side for name, side in sides.items() if is_efficient(name)]
    yield Benefit(
        evidence.rules(cards[0]),
        shown(cards[0]["task"]),
        _code(cards[0]["pattern"]),
        shown(score["name"]) + (", %" if percent else ""),
        sides[WITHOUT],
        sides[EXACT],
        max(efficient, key=lambda side: sign * side.mean, default=None),
        higher,
        "{:.2f}".format if percent else "{:.4g}".format,
        _interval(evidence, seeds[EXACT], seeds[WITHOUT], scale * sign, notes),
    )


def _interval(
    evidence: Evidence, one: Sequence[Card], other: Sequence[Card], scale: float, notes: list[str]
) -> tuple[float, float] | None:
    """The 95 % interval of the difference over examples and seeds, else over seeds; None where a side has one seed."""
    metric = one[0]["score"]["name"]
    found = [scores_of(evidence, cards, metric, notes) for cards in (one, other)]
    scores = [own for own in found if own]
    if len(scores) == 2 and scores[0].examples == scores[1].examples:
        return interval(scale * paired_draws(scores[0], scores[1], block=block_of(one[0])))
    values = [[card["score"]["value"] for card in cards] for cards in (one, other)]
    return _over_seeds(values[0], values[1], scale)


def _over_seeds(one: Sequence[float], other: Sequence[float], scale: float = 1.0) -> tuple[float, float] | None:
    if min(len(one), len(other)) < 2:
        return None
    first, second = (Scores(np.asarray(own)[:, None]) for own in (one, other))
    return interval(scale * paired_draws(first, second))


# ------------------------------------------------------------------------------------------------------ by CAB's index


def _indices(runs: Sequence[Card]) -> Iterator[Benefit]:
    """The index of each task of CAB in which `none` and softmax have every metric."""
    groups: dict[tuple, dict] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for card in runs:
        ok = card["status"] == "ok" and not card["overrides"] and not card["fidelity"]
        if ok and card["pattern"] in index_constants().patterns and data_of(card) != STANDIN:
            key = (card["protocol"], card["tier"], card["pattern"], data_of(card))
            groups[key][card["task"]][row_mechanism(card)].append(card)
    for (protocol, tier, pattern, data), settings in sorted(groups.items(), key=lambda item: item[0]):
        for task, measures in _tasks(pattern).items():
            full = tier == "full" and data == REAL and all(CONSTANTS in measure.scales for measure in measures)
            scored, constants = (measures, CONSTANTS) if full else (_own_scales(measures, settings), OWN)
            origin = " · ".join((protocol, tier, *([data] if data != REAL else [])))
            if scored and (made := _index(scored, constants, settings, shown(origin), task, _code(pattern))):
                yield made


def _tasks(pattern: str) -> dict[str, tuple[Measure, ...]]:
    """The tasks that CAB scores under a pattern, and those it only ablates, which have no constants."""
    known = index_constants().patterns
    found = dict(known[pattern].tasks)
    for task in UNPUBLISHED.get(pattern, ()):
        found[task] = tuple(replace(measure, scales={}) for measure in known["noncausal_cross"].tasks[task])
    return found


def cab_pool() -> frozenset[str]:
    """The mechanisms that CAB's constants are computed over, by their names here."""
    names = {row.title: row.mechanism for row in published.measured("cab-task-scores").rows}
    return frozenset(names[title] or title for title in index_constants().pool)


@cache
def is_efficient(mechanism: str) -> bool:
    """Whether a mechanism may be called efficient beside softmax; a plug-in, whose cost no catalogue has, may.

    >>> [is_efficient(name) for name in ("etc", "longshort", "mine.py:Mine", "transformer_xl", "softmax", "none")]
    [True, True, True, False, False, False]
    """
    base = mechanism.partition("(")[0]
    quadratic = {one["name"] for one in catalogue.read(catalogue.SHIPPED)["attentions"] if one["cost"] == "n^2"}
    return base not in (WITHOUT, EXACT) and (base not in quadratic or base in cab_pool())


def _own_scales(measures: Sequence[Measure], settings: Mapping) -> tuple[Measure, ...]:
    """The measures with the mean and deviation of CAB's mechanisms; empty where too few of them have one."""
    scaled = []
    for measure in measures:
        scores = by_mechanism(measure, settings)
        values = [measure.factor * statistics.fmean(own) for name, own in scores.items() if name in cab_pool()]
        if len(values) < MIN_POOL or not (std := statistics.stdev(values)) > 0:
            return ()
        scaled.append(replace(measure, scales={OWN: Scale(statistics.fmean(values), std)}))
    return tuple(scaled)


def _index(
    measures: Sequence[Measure], constants: str, settings: Mapping, origin: str, task: str, code: str
) -> Benefit | None:
    titles = {row_mechanism(card): _title(card) for own in settings.values() for one in own.values() for card in one}
    z: dict[str, list[list[float]]] = defaultdict(list)
    for measure in measures:
        for mechanism, values in by_mechanism(measure, settings).items():
            z[mechanism].append([measure.z(value, constants) for value in values])
    complete = {
        name: Side(titles[name], tuple(map(statistics.fmean, zip(*own, strict=False))))
        for name, own in z.items()
        if len(own) == len(measures)
    }
    if not {WITHOUT, EXACT} <= complete.keys():
        return None
    efficient = [side for name, side in complete.items() if is_efficient(name)]
    used = constants if constants != OWN else f"own pool of {len(cab_pool() & complete.keys())}"
    without, softmax = complete[WITHOUT], complete[EXACT]
    best = max(efficient, key=lambda side: side.mean, default=None)
    ends = _over_seeds(softmax.values, without.values)
    return Benefit(origin, index_constants().tasks[task], code, f"index, {used}", without, softmax, best, interval=ends)


def _title(card: Card) -> str:
    """As boards name the row: without the options where the protocol chooses them."""
    return shown(card["title"]) if card.get("preset") else name_of(card)


def _code(pattern: str) -> str:
    known = index_constants().patterns.get(pattern)
    return known.code if known else shown(pattern)


# ------------------------------------------------------------------------------------------------------------ Table 12


def _published() -> Iterator[Benefit]:
    table, scores = published.measured("cab-benefit"), published.measured("cab-task-scores")
    efficient, exact, without = (
        table.row(title) for title in ("efficient attention", "vanilla attention", "w/o attention")
    )
    for column in table.columns:
        own, best = f"ns_{column.name}", efficient.value(column.name)
        rows = [row for row in scores.rows if own in row.printed and row.title in index_constants().pool[1:]]
        named = [row.title for row in rows if abs(row.value(own) - best) < UNIT]
        yield Benefit(
            "published",
            column.title,
            "NS",
            "index, as printed",
            None if column.name in without.failed else Side("", (without.value(column.name),)),
            Side("", (exact.value(column.name),)),
            Side(named[0] if len(named) == 1 else "", (best,)),
            word="not tested" if column.name not in without.failed else "open: the run failed",
        )
