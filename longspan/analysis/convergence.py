"""How does a mechanism learn? Its curve, averaged over seeds where they were evaluated at the same step."""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from longspan.results.card import Card


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
