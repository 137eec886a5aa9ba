"""How do time and memory grow with length? The exponent of each, and whether it confirms the declared cost.

The exponent is the slope of a log-log fit over 8,192 to 65,536 tokens, under CUDA graphs where they were measured
(launch overhead would flatten short calls), else eager. A declared cost of n allows an exponent of at most 1.15,
n log n 1.25, n sqrt n 1.6; n^2 claims nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longspan.analysis.cards import Evidence
from longspan.analysis.comparable import Bench, MeasuredMechanism, need_benches
from longspan.analysis.finding import Column, Finding
from longspan.core.errors import DataMissing

SHORTEST, LONGEST = 8192, 65536
POINTS = 3  # a line through two points fits whatever they are
LIMITS = {"n": 1.15, "n log n": 1.25, "n sqrt n": 1.6}
VARIANTS = ("graph", "eager")
MODES = ("forward", "train")
COLUMNS = (
    Column("Mechanism"),
    Column("Declared"),
    Column("Mode", context=True),
    Column("Pattern", context=True),
    Column("Time", "number", "exponent of the seconds of a call"),
    Column("R² of time", "fit"),
    Column("Memory", "number", "exponent of the peak allocated during a call, inputs included"),
    Column("R² of memory", "fit"),
    Column("At most", "number"),
    Column("Verdict"),
    Column("Variant", context=True),
    Column("Lengths", "count", "how many lengths the times were fitted to", context=True),
    Column("Measured on", context=True),
)


@dataclass(frozen=True)
class Slope:
    exponent: float
    r2: float
    count: int


@dataclass(frozen=True)
class Growth:
    """One mechanism in one mode; None where too few lengths were measured."""

    mechanism: str
    title: str
    cost: str | None
    mode: str
    pattern: str
    where: str
    variant: str
    time: Slope | None
    memory: Slope | None

    @property
    def limit(self) -> float | None:
        return LIMITS.get(self.cost or "")

    @property
    def misses(self) -> list[str]:
        """The quantities that grow faster than declared."""
        pairs = (("time", self.time), ("memory", self.memory))
        return [name for name, slope in pairs if self.limit and slope and slope.exponent > self.limit]

    @property
    def verdict(self) -> str:
        if self.cost is None:
            return "declares nothing"
        if self.limit is None:
            return "no claim"
        if self.misses:
            return f"misses in {' and '.join(self.misses)}"
        unknown = [name for name, slope in (("time", self.time), ("memory", self.memory)) if slope is None]
        return f"{' and '.join(unknown)} not measured" if unknown else "kept"


def slope(lengths: Sequence[int], values: Sequence[float]) -> Slope | None:
    """The straight line in log-log space; None for fewer than three points.

    >>> slope([1024, 2048, 4096], [1.0, 2.0, 4.0])
    Slope(exponent=1.0, r2=1.0, count=3)
    """
    if len(lengths) < POINTS:
        return None
    x, y = np.log2(np.array(lengths, dtype=float)), np.log2(np.array(values, dtype=float))
    exponent, start = np.polyfit(x, y, 1)
    left, spread = float(((y - exponent * x - start) ** 2).sum()), float(((y - y.mean()) ** 2).sum())
    r2 = 1.0 if spread == 0 else 1 - left / spread  # a value that does not grow lies on its line
    return Slope(round(float(exponent), 12), round(r2, 12), len(lengths))


def answer(evidence: Evidence) -> Finding:
    found = need_benches(evidence.measurements)
    grown = [
        growth
        for bench in found
        for mode in MODES
        for entry in bench.mechanisms.values()
        if (growth := _growth(bench, entry, mode)) is not None
    ]
    if not grown:
        raise DataMissing(
            f"No mechanism was measured at {POINTS} lengths from {SHORTEST:,} to {LONGEST:,}; measure more with "
            "longspan measure softmax linear --lengths 8192 16384 32768 65536."
        )
    grown.sort(key=lambda one: (one.where, one.pattern, one.mode, not one.misses, one.title.casefold()))
    rows = tuple(
        (
            one.title,
            one.cost,
            one.mode,
            one.pattern,
            one.time and one.time.exponent,
            one.time and one.time.r2,
            one.memory and one.memory.exponent,
            one.memory and one.memory.r2,
            one.limit,
            one.verdict,
            one.variant,
            one.time and one.time.count,
            one.where,
        )
        for one in grown
    )
    return Finding(
        "scaling",
        "Growth with length",
        f"The exponents of time and memory from {SHORTEST:,} to {LONGEST:,} tokens, and the declared cost.",
        COLUMNS,
        rows,
        tuple(_notes(grown)),
        tuple(grown),
    )


def _growth(bench: Bench, entry: MeasuredMechanism, mode: str) -> Growth | None:
    for variant in VARIANTS:
        fitted = []
        for quantity in ("time", "memory"):
            series = entry.series(quantity, mode, variant)
            inside = {n: sample.median for n, sample in series.items() if SHORTEST <= n <= LONGEST}
            fitted.append(slope(list(inside), list(inside.values())))
        if fitted[0] is not None:
            who = (entry.mechanism, entry.name, entry.cost, mode, bench.pattern, bench.where, variant)
            return Growth(*who, *fitted)
    return None


def _notes(grown: Sequence[Growth]) -> list[str]:
    limits = "; ".join(f"{cost}: {limit}" for cost, limit in LIMITS.items())
    notes = [
        f"Allowed exponents: {limits}; n^2 claims nothing.",
        "Memory is the peak that the allocator had given out during the call, with the inputs and the weights in it.",
    ]
    if any(one.variant == "eager" for one in grown):
        notes.append(
            "Where the variant is eager there were no times under CUDA graphs; launching flattens short calls."
        )
    missed = [one for one in grown if one.misses]
    for one in missed:
        slopes = [f"{name} {getattr(one, name).exponent:.2f}" for name in one.misses]
        notes.append(f"Misses {one.cost}: {one.title}, {one.mode}, {one.pattern}, {' and '.join(slopes)}.")
    return notes if missed else [*notes, "None grows faster than it declares."]
