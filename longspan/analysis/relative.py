"""What do time and memory come to beside exact attention? Figure 2 a and b of CAB, from our measurements.

Every curve is that of a mechanism divided by the baseline's at the same length: below 1 it is cheaper. Time has an
interval from the spread of its readings, and a mechanism is called cheaper from the length on at which its whole
interval stays below 1. The baselines are the naive softmax, which materialises its matrix as CAB's vanilla attention
did, and today's fused one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from longspan.analysis.cards import Evidence
from longspan.analysis.comparable import QUANTITIES, VARIANTS, Bench, MeasuredMechanism, need_benches
from longspan.analysis.crossover import BASELINES, median_error
from longspan.analysis.finding import Column, Finding
from longspan.analysis.growth import LengthCurve
from longspan.core.errors import DataMissing
from longspan.core.printable import shown

MODES = ("forward", "train")
KINDS = ("time", "memory")


@dataclass(frozen=True)
class RelativeCurves:
    """Lines that share their axes; 1 is what the baseline costs."""

    where: str
    pattern: str
    mode: str
    quantity: str
    baseline: str
    variant: str
    lines: tuple[LengthCurve, ...]
    cheaper_from: dict[str, int | None]  # by mechanism: the first length from which on every interval is below 1


def answer(evidence: Evidence) -> Finding:
    found = [
        curves
        for bench in need_benches(evidence.measurements)
        for mode in MODES
        for kind in KINDS
        for baseline in BASELINES
        if baseline in bench.mechanisms and (curves := _curves(bench, mode, kind, baseline)) is not None
    ]
    if not found:
        raise DataMissing("Nothing was measured beside softmax; measure it too with longspan measure softmax linear.")
    lengths = sorted({int(x) for one in found for line in one.lines for x in line.x})
    return Finding(
        "relative",
        "Cost relative to exact attention",
        "Time and memory of a call divided by those of softmax at the same length; below 1 is cheaper.",
        (
            Column("Quantity"),
            Column("Mode"),
            Column("Baseline", context=True),
            Column("Variant", context=True),
            Column("Pattern", context=True),
            Column("Mechanism"),
            *(Column(f"{length:,}", "number") for length in lengths),
            Column("Cheaper from", "count", "the length from which on its whole interval lies below 1"),
            Column("Measured on", context=True),
        ),
        tuple(_rows(found, lengths)),
        (
            "The interval of a quotient of times is 95 % by the spread of their readings; memory has none.",
            "CAB draws these curves and prints no numbers of them.",
        ),
        tuple(found),
    )


def _rows(found: list[RelativeCurves], lengths: list[int]) -> Iterator[tuple]:
    for one in found:
        for line in one.lines:
            words = (one.quantity, one.mode, one.baseline, one.variant, one.pattern, line.title)
            yield (*words, *line.at(lengths), one.cheaper_from[line.mechanism], one.where)


def _curves(bench: Bench, mode: str, kind: str, baseline: str) -> RelativeCurves | None:
    against = bench.mechanisms[baseline]
    for variant in ("eager", "graph") if kind == "memory" else VARIANTS:
        lines, cheaper = [], {}
        for mechanism, entry in bench.mechanisms.items():
            ratios = _ratios(entry, against, kind, mode, variant) if mechanism != baseline else {}
            if ratios:
                x, y = tuple(map(float, ratios)), tuple(ratio for ratio, _ in ratios.values())
                lines.append(LengthCurve(mechanism, entry.name, x, y))
                cheaper[mechanism] = cheaper_from({n: high for n, (_, high) in ratios.items()})
        if lines:
            place = (bench.where, bench.pattern, mode, QUANTITIES[kind].name)
            return RelativeCurves(*place, shown(baseline), variant, tuple(lines), cheaper)
    return None


def _ratios(
    entry: MeasuredMechanism, against: MeasuredMechanism, kind: str, mode: str, variant: str
) -> dict[int, tuple[float, float]]:
    """The quotient and the upper end of its interval, by length."""
    theirs, own = (one.series(kind, mode, variant) for one in (against, entry))
    found = {}
    for length in sorted(theirs.keys() & own.keys()):
        ratio = own[length].median / theirs[length].median
        errors = [median_error(one[length]) or 0.0 for one in (theirs, own)]
        found[length] = ratio, ratio * math.exp(1.96 * math.hypot(*errors))
    return found


def cheaper_from(ends: dict[int, float]) -> int | None:
    """The first length from which on all upper ends lie below 1.

    >>> cheaper_from({256: 0.9, 512: 1.2, 1024: 0.8, 2048: 0.4}), cheaper_from({256: 0.5, 512: 1.0})
    (1024, None)
    """
    found = None
    for length in sorted(ends, reverse=True):
        if ends[length] >= 1:
            break
        found = length
    return found
