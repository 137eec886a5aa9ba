"""How does a mechanism learn? Its learning curve, averaged over seeds where they were evaluated at the same step.

And how soon: the first evaluation with at least 30 and 35 % validation accuracy on Image, beside Table 5 of Long Range
Arena. The step is only as exact as evaluations are frequent.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from longspan import published
from longspan.analysis.cards import Evidence, name_of
from longspan.analysis.finding import Column, Finding
from longspan.results.card import Card

TASK = "image"
LEVELS = (0.30, 0.35)
COLUMNS = (
    Column("Mechanism"),
    Column("From"),
    *(Column(f"{100 * level:.0f} %", "count", "training steps to this validation accuracy") for level in LEVELS),
    *(Column(f"{100 * level:.0f} %, printed", "count", "of the same mechanism in Table 5") for level in LEVELS),
    Column("Evaluated every", "count", "steps between two evaluations"),
    Column("Seeds", "count"),
)


@dataclass(frozen=True)
class MeanCurve:
    """A quantity against steps: mean, lowest and highest over the seeds, and the mean seconds spent so far."""

    mechanism: str
    title: str
    seeds: int
    steps: tuple[int, ...]
    seconds: tuple[float | None, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def mean_curves(cards: Iterable[Card], quantity: str = "valid_accuracy") -> list[MeanCurve]:
    """One curve per mechanism that finished, in order of title. Cards must share task, protocol, tier and pattern."""
    by_mechanism: dict[str, list[Card]] = defaultdict(list)
    for card in cards:
        if card["status"] == "ok":  # half a curve would bend the mean where it ends
            by_mechanism[card["mechanism"]].append(card)
    curves = [_mean_curve(mechanism, own, quantity) for mechanism, own in by_mechanism.items()]
    return sorted(
        (curve for curve in curves if curve.steps), key=lambda curve: (curve.title.casefold(), curve.mechanism)
    )


def _mean_curve(mechanism: str, cards: list[Card], quantity: str) -> MeanCurve:
    values: dict[int, list[float]] = defaultdict(list)
    seconds: dict[int, list[float]] = defaultdict(list)
    for card in cards:
        for point in card["curve"]:
            if point.get(quantity) is not None:
                values[point["step"]].append(point[quantity])
                if point.get("seconds") is not None:
                    seconds[point["step"]].append(point["seconds"])
    steps = tuple(sorted(values))
    return MeanCurve(
        mechanism=mechanism,
        title=cards[0]["title"],
        seeds=len(cards),
        steps=steps,
        seconds=tuple(statistics.fmean(seconds[step]) if seconds[step] else None for step in steps),
        mean=tuple(statistics.fmean(values[step]) for step in steps),
        low=tuple(min(values[step]) for step in steps),
        high=tuple(max(values[step]) for step in steps),
    )


# --------------------------------------------------------------------------------------------------------- how soon


@dataclass(frozen=True)
class Milestones:
    """Steps to each of LEVELS, the mean over seeds; None where a seed never got there."""

    title: str
    mechanism: str
    origin: str
    steps: tuple[float | None, ...]
    grid: int | None
    seeds: int | None


def answer(evidence: Evidence) -> Finding:
    found = [*_own(evidence), *_published()]
    notes = [published.measured("lra-convergence").note]
    names = {one.mechanism.partition("(")[0] for one in found if one.origin != "published"}
    printed = {one.mechanism for one in found if one.origin == "published"}
    notes.append(f"Own numbers stand beside {len(names & printed)} of the {len(printed)} models of the paper.")
    if any(None in one.steps for one in found):
        notes.append("A dash means that not every seed reached the level.")
    return Finding(
        "convergence",
        "Convergence on Image",
        "Training steps until the validation accuracy reaches 30 % and 35 %.",
        COLUMNS,
        tuple((one.title, one.origin, *one.steps, *_printed(one), one.grid, one.seeds) for one in found),
        tuple(notes),
        tuple(found),
    )


def first_step(card: Card, level: float) -> int | None:
    """The first evaluation of a run at which the validation accuracy reached a level."""
    reached = (point["step"] for point in card["curve"] if (point.get("valid_accuracy") or 0.0) >= level)
    return min(reached, default=None)


def _own(evidence: Evidence) -> list[Milestones]:
    runs = [card for card in evidence.runs if card["task"] == TASK and card["status"] == "ok"]
    found = []
    for rules, cards in evidence.same(runs):
        steps = [[first_step(card, level) for card in cards] for level in LEVELS]
        means = tuple(None if None in of_level else statistics.fmean(_known(of_level)) for of_level in steps)
        found.append(Milestones(name_of(cards[0]), cards[0]["mechanism"], rules, means, _grid(cards[0]), len(cards)))
    return found


def _printed(one: Milestones) -> tuple[float | None, ...]:
    row = published.measured("lra-convergence").counterpart(one.mechanism) if one.origin != "published" else None
    return tuple(None if row is None else row.value(f"steps_{100 * level:.0f}") for level in LEVELS)


def _known(steps: list[int | None]) -> list[int]:
    return [step for step in steps if step is not None]


def _grid(card: Card) -> int | None:
    every = card["settings"]["recipe"].get("evaluate_every")
    return every if isinstance(every, int) else None


def _published() -> list[Milestones]:
    table = published.measured("lra-convergence")
    columns = [f"steps_{100 * level:.0f}" for level in LEVELS]
    return [
        Milestones(
            row.title, row.mechanism or row.title, "published", tuple(row.value(name) for name in columns), None, None
        )
        for row in table.rows
    ]
