"""Which mechanisms does nothing beat at once in score, time and memory? The Pareto front of every task, from its runs.

Time and memory are those of the training that gave the score, on one machine in one precision. The share of draws in
which a mechanism is on the front says how sure its place is: each draw resamples test examples, the same for all, and
seeds; time and memory stay as measured.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from longspan.analysis.cards import Evidence, name_of
from longspan.analysis.comparable import ABLATIONS
from longspan.analysis.finding import Column, Finding
from longspan.analysis.paired import Scores, block_of, joint_draws, scores_of
from longspan.core.errors import DataMissing
from longspan.core.printable import shown
from longspan.results.alike import row_mechanism
from longspan.results.card import Card
from longspan.results.collect import pattern_order

GIB = 2**30
COLUMNS = (
    Column("Task"),
    Column("Mechanism"),
    Column("From", context=True),
    Column("Pattern", context=True),
    Column("On", context=True),
    Column("Score", "text", "mean over seeds, in percent where it is a rate"),
    Column("ms a step", "number", "of training, median over seeds"),
    Column("Memory, GiB", "number", "peak in training, median over seeds"),
    Column("On the front", "text", "nothing is as good in all three and better in one"),
    Column("Sure", "text", "share of draws in which it is on the front"),
    Column("Beaten by", "text", "what is as good in all three and better in one"),
)


@dataclass(frozen=True)
class Cost:
    """What one mechanism reached on a task, and at what price."""

    title: str
    mechanism: str
    score: float
    step_ms: float
    memory_gib: float | None


@dataclass(frozen=True)
class CostFront:
    """Comparable mechanisms: one task and machine, one set of rules."""

    label: str
    metric: str
    percent: bool
    higher_is_better: bool
    points: tuple[Cost, ...]


def answer(evidence: Evidence) -> Finding:
    rows, fronts, notes = [], [], []
    for cards in _groups(evidence.runs):
        found = _front(evidence, cards, notes)
        if found is not None:
            rows += found[0]
            fronts.append(found[1])
    if not rows:
        raise DataMissing(
            "No task has runs of two mechanisms that were timed on one machine; run some, as in "
            "longspan run listops -a softmax linear."
        )
    notes.append("Runs that shared their device are not timed. Where one seed was run, luck of training is not drawn.")
    return Finding(
        "front",
        "Pareto fronts",
        "Score against time and memory of training; the dotted line joins what nothing beats in both.",
        COLUMNS,
        tuple(rows),
        tuple(dict.fromkeys(notes)),
        tuple(fronts),
    )


def _groups(runs: Sequence[Card]) -> Iterator[list[Card]]:
    """Finished runs of mechanisms by the rules, of one task, data and machine."""
    groups: dict[tuple, list[Card]] = defaultdict(list)
    for card in runs:
        by_rules = card["status"] == "ok" and card["track"] == "fixed" and not (card["fidelity"] or card["overrides"])
        if by_rules and card["mechanism"] not in ABLATIONS:
            names = ("protocol", "tier")
            rules = (*(card[name] for name in names), *pattern_order(card["pattern"]), card["task"])
            groups[(*rules, card["dataset"]["sha256"], card["score"]["name"], _machine(card))].append(card)
    yield from (groups[key] for key in sorted(groups))


def _machine(card: Card) -> str:
    settings, found = card["settings"], card["environment"]
    on_gpu = str(settings.get("device", "")).startswith("cuda")
    words = (found.get("gpu") if on_gpu else found.get("cpu"), settings.get("precision"))
    return shown(" · ".join(str(word) for word in words if word))


def _front(evidence: Evidence, cards: Sequence[Card], notes: list[str]) -> tuple[list[tuple], CostFront] | None:
    """The rows of a table and the data of its figure; None with fewer than two mechanisms to compare."""
    own: dict[str, list[Card]] = defaultdict(list)
    for card in cards:
        own[row_mechanism(card)].append(card)
    timed = {name: (seeds, cost) for name, seeds in sorted(own.items()) if (cost := _cost(seeds))}
    if len(timed) < 2:
        return None
    points = [cost for _, cost in timed.values()]
    card, score = cards[0], cards[0]["score"]
    percent, sign = score.get("unit", "percent") == "percent", 1 if score["higher_is_better"] else -1
    beaten = dominated(points, np.array([[sign * point.score] for point in points]))[:, :, 0]
    sure = _sureness(evidence, [seeds for seeds, _ in timed.values()], points, sign, notes)
    rules = (evidence.rules(card), shown(card["pattern"]), _machine(card))
    rows = [
        (
            shown(card["task"]),
            point.title,
            *rules,
            f"{100 * point.score:.2f}" if percent else f"{point.score:.4g}",
            point.step_ms,
            point.memory_gib,
            not beaten[place].any(),
            "–" if sure is None else f"{100 * sure[place]:.0f} %",
            ", ".join(other.title for other, wins in zip(points, beaten[place], strict=True) if wins) or "–",
        )
        for place, point in enumerate(points)
    ]
    label = " · ".join((shown(card["task"]), *rules))
    return rows, CostFront(label, shown(score["name"]), percent, score["higher_is_better"], tuple(points))


def _cost(seeds: Sequence[Card]) -> Cost | None:
    """The means of a mechanism; None where every run shared its device, or none was timed."""
    timing = [card["timing"] for card in seeds]
    speeds = [found["steps_per_second"] for found in timing if not found.get("shared") and found["steps_per_second"]]
    sizes = [size for card in seeds if (size := card["memory"]["peak_bytes"])]
    if not speeds:
        return None
    return Cost(
        shown(seeds[0]["title"]) if seeds[0].get("preset") else name_of(seeds[0]),
        shown(row_mechanism(seeds[0])),
        statistics.fmean(card["score"]["value"] for card in seeds),
        1000 / statistics.median(speeds),
        statistics.median(sizes) / GIB if sizes else None,
    )


def dominated(points: Sequence[Cost], scores: np.ndarray) -> np.ndarray:
    """Whether the second dominates the first: as good in everything, better in something; [first, second, draws].

    Scores are [mechanisms, draws], more is better; memory counts where it is known of both.
    """
    time = np.array([point.step_ms for point in points])
    memory = np.array([np.nan if point.memory_gib is None else point.memory_gib for point in points])
    larger, smaller = memory[:, None] > memory, memory[:, None] < memory  # both False for NaN
    slower, faster = time[:, None] > time, time[:, None] < time
    worse, better = scores[:, None] < scores, scores[:, None] > scores
    return ~(smaller | faster)[..., None] & ~better & ((larger | slower)[..., None] | worse)


def _sureness(
    evidence: Evidence, seeds: Sequence[Sequence[Card]], points: Sequence[Cost], sign: int, notes: list[str]
) -> np.ndarray | None:
    """The share of draws in which each is on the front; None where there is nothing to draw from."""
    metric, block = seeds[0][0]["score"]["name"], block_of(seeds[0][0])
    found = [scores_of(evidence, cards, metric, notes) for cards in seeds]
    scores = [own for own in found if own]
    if len(scores) < len(found) or len({own.examples for own in scores}) > 1:
        if min(map(len, seeds)) < 2:
            return None
        scores = [Scores(np.array([[card["score"]["value"]] for card in cards])) for cards in seeds]
        block = 1
    return 1 - dominated(points, sign * joint_draws(scores, block=block)).any(axis=1).mean(axis=1)
