"""From which length on does a mechanism beat another, usually exact attention? Its efficiency length, by two methods.

    cab_2023({256: .472, ...}, {256: .648, ...}, "time").length      # 1877.3, with r2
    measured({256: ReadingSummary(...), ...}, {256: ReadingSummary(...), ...}).length

`cab-2023` is the Comprehensive Attention Benchmark's own method: y = ax^2 + bx + c through the baseline, y = ex + f
through the mechanism (through all lengths but 256 for time), and the larger root of their difference. R2 is that of
the straight line. Beyond CAB, the quadratic term must be significant (`parabola.py`): the memory of a fused softmax is
a straight line, and rounding bends it enough for a root at 1e18. `measured` uses measured lengths alone: where the log
difference changes sign between two of them for the last time, the crossing is interpolated linearly in log-log space.
Its interval is a bootstrap: medians are redrawn from the spread of their readings.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from longspan.analysis import csv_measurements, parabola
from longspan.analysis.cards import Evidence
from longspan.analysis.comparable import QUANTITIES, VARIANTS, Bench, MeasuredMechanism, ReadingSummary, need_benches
from longspan.analysis.finding import Column, Finding
from longspan.core.errors import DataMissing, UnknownName, UsageError, did_you_mean
from longspan.core.printable import shown
from longspan.core.spec import Spec

METHODS = ("measured", "cab-2023")
BASELINES = ("softmax", 'softmax(kernel="plain")')  # what the site compares with: today's kernel and the naive one
MODES = ("forward", "train")
DROPPED = 256  # the length that CAB's code leaves out of the line fitted to times
DRAWS, SEED = 2000, 0
SIGMA = 1.349  # quartiles of a normal distribution lie this many standard deviations apart
MEDIAN_ERROR = 1.2533  # the standard error of its median is this many times that of its mean
CHEAPER = {"time": ("faster", "slower"), "memory": ("smaller", "larger"), "energy": ("thriftier", "thirstier")}

Status = Literal["crosses", "between", "below", "above", "none"]

COLUMNS = (
    Column("Mechanism"),
    Column("Baseline", context=True),
    Column("Quantity", context=True),
    Column("Mode", context=True),
    Column("Variant", context=True),
    Column("Pattern", context=True),
    Column("Efficiency length", "count", "tokens from which on the mechanism is cheaper than the baseline"),
    Column("From", "count", "lower end of the 95 % interval", context=True),
    Column("To", "count", "upper end of the 95 % interval", context=True),
    Column("R²", "fit", "of the straight line through the mechanism, as CAB has it", context=True),
    Column("In words"),
    Column("Measured on", context=True),
)


@dataclass(frozen=True)
class Crossing:
    """`length` only where it could be located; `words` always say what was found."""

    status: Status
    words: str
    length: float | None = None
    interval: tuple[float | None, float | None] | None = None  # None at an end: beyond what was measured
    r2: float | None = None


@dataclass(frozen=True)
class Comparison:
    """A mechanism against a baseline on one bench, or in a file."""

    mechanism: str
    title: str
    baseline: str
    quantity: str
    mode: str
    variant: str
    pattern: str
    where: str
    lengths: tuple[int, ...]
    crossing: Crossing

    @property
    def row(self) -> tuple:
        found = self.crossing
        length, *ends = (
            None if one is None else round(one) for one in (found.length, *(found.interval or (None, None)))
        )
        start = (self.title, self.baseline, self.quantity, self.mode, self.variant, self.pattern)
        return (*start, length, *ends, found.r2, found.words, self.where)


# ------------------------------------------------------------------------------------------------------ the two methods


def cab_2023(baseline: Mapping[int, float], mechanism: Mapping[int, float], quantity: str) -> Crossing:
    """CAB's fits and their larger crossing; the words say where it lies outside the measured lengths."""
    used = {length: value for length, value in mechanism.items() if quantity != "time" or length != DROPPED}
    if len(baseline) < parabola.FEWEST or len(used) < 2:
        wanted = f"{parabola.FEWEST} lengths of the baseline and 2 of the mechanism"
        counts = f"{len(baseline)} of the baseline, {len(used)} of the mechanism"
        return Crossing("none", f"no crossover: the fits need {wanted}, got {counts}")
    curve = parabola.parabola(list(baseline), list(baseline.values()))
    a, b, c = curve.a, curve.b, curve.c
    e, f = np.polyfit(list(used), list(used.values()), 1)
    r2 = _r2(np.array(list(used)), np.array(list(used.values())), float(e), float(f))
    if not curve.bends_upwards:
        words = f"no crossover: the baseline is not quadratic (p = {curve.p:.2g} for its quadratic term)"
        return Crossing("none", words, r2=r2)
    under = (b - e) ** 2 - 4 * a * (c - f)
    if under < 0:
        return Crossing("none", "no crossover: by the fits it is cheaper at every length", r2=r2)
    root = float((e - b + math.sqrt(under)) / (2 * a))
    if root <= 0:
        return Crossing("none", "no crossover: by the fits it is cheaper at every positive length", r2=r2)
    lowest, highest = min(baseline), max(baseline)
    words = f"the fits cross at {root:,.0f}"
    words += "" if lowest <= root <= highest else f", outside the measured lengths {lowest:,} to {highest:,}"
    interval = _fitted_interval(baseline, used)
    open_ends = ("be cheaper at every length", "never be cheaper")
    may = [end for end, value in zip(open_ends, interval or (), strict=False) if value is None]
    words += f"; by the scatter about the fits it may as well {' or '.join(may)}" if may else ""
    return Crossing("crosses", words, root, interval, r2)


def _fitted_interval(
    baseline: Mapping[int, float], used: Mapping[int, float]
) -> tuple[float | None, float | None] | None:
    """The 95 % interval of crossings of fits drawn from their residual scatter; an end is None where fits do not cross.

    None altogether where the line runs through two points and so has no residuals.
    """
    if len(used) < 3:
        return None
    random = np.random.default_rng(SEED)
    a, b, c = _drawn_fits(random, baseline, 2).T
    e, f = _drawn_fits(random, used, 1).T
    under = (b - e) ** 2 - 4 * a * (c - f)
    crosses = (a > 0) & (under >= 0)
    roots = np.full(DRAWS, math.inf)
    roots[crosses] = (e - b + np.sqrt(np.maximum(under, 0)))[crosses] / (2 * a[crosses])
    roots[(a > 0) & ((under < 0) | (roots <= 0))] = 0.0  # cheaper at every length
    low, high = np.quantile(roots, [0.025, 0.975], method="inverted_cdf")
    return _inside(float(low)), _inside(float(high))


def _drawn_fits(random: np.random.Generator, points: Mapping[int, float], degree: int) -> np.ndarray:
    """Coefficients of least squares, highest power first, drawn from their joint Student distribution."""
    longest = max(points)
    design = np.vander(np.array(list(points), dtype=float) / longest, degree + 1)  # lengths from 0 to 1
    values = np.array(list(points.values()), dtype=float)
    found, free = np.linalg.lstsq(design, values, rcond=None)[0], len(points) - degree - 1
    covariance = np.linalg.inv(design.T @ design) * ((values - design @ found) ** 2).sum() / free
    spread = random.multivariate_normal(np.zeros(degree + 1), covariance, DRAWS, method="eigh")
    spread *= np.sqrt(free / random.chisquare(free, (DRAWS, 1)))
    return (found + spread) / longest ** np.arange(degree, -1, -1)


def _r2(x: np.ndarray, y: np.ndarray, slope: float, start: float) -> float | None:
    """The coefficient of determination of a straight line; None where all values are the same."""
    spread = float(((y - y.mean()) ** 2).sum())
    return None if spread == 0 else 1 - float(((y - slope * x - start) ** 2).sum()) / spread


def measured(
    baseline: Mapping[int, ReadingSummary],
    mechanism: Mapping[int, ReadingSummary],
    quantity: str = "time",
    *,
    lost: Iterable[int] = (),
    seed: int = SEED,
) -> Crossing:
    """The last change of sign between measured lengths. `lost` are lengths at which the baseline did not fit."""
    cheap, dear = CHEAPER[quantity]
    lengths = sorted(baseline.keys() & mechanism.keys())
    beyond = min((one for one in lost if one in mechanism and one > max(lengths, default=0)), default=None)
    if not lengths:
        return Crossing("none", "none: there is no length at which both were measured")
    logs = np.array([math.log(baseline[n].median / mechanism[n].median) for n in lengths])  # above 0: cheaper
    where = float(_last_crossings(lengths, logs[None])[0])
    interval = _interval(lengths, baseline, mechanism, seed)
    first, last = lengths[0], lengths[-1]
    if where == math.inf and beyond is not None:
        words = f"{dear} up to {last:,}; at {beyond:,} the baseline no longer fits, so it lies between the two"
        return Crossing("between", words, None, (float(last), float(beyond)))
    if not logs.any():
        return Crossing("none", "none: both cost the same at every measured length", None, interval)
    if where == 0:
        return Crossing("below", f"{cheap} at every measured length: below the shortest, {first:,}", None, interval)
    if where == math.inf and not (logs > 0).any():
        words = f"{dear} at every measured length: above the longest, {last:,}, if at all"
        return Crossing("above", words, None, interval)
    if where == math.inf:
        won = [n for n, log in zip(lengths, logs, strict=True) if log > 0]
        words = f"none: {cheap} at {_range(won)} but {dear} at the longest, {last:,}"
        return Crossing("none", words, None, interval)
    changes = int(((logs[1:] > 0) != (logs[:-1] > 0)).sum())
    words = f"{cheap} from {where:,.0f} on"
    words += f", after {changes - 1} earlier change{'s' if changes > 2 else ''} of the lead" if changes > 1 else ""
    return Crossing("crosses", words + _beyond(interval, first, last), where, interval)


def _beyond(interval: tuple[float | None, float | None] | None, first: int, last: int) -> str:
    """What an interval leaves open, in words."""
    low, high = interval or (0.0, 0.0)
    ends = [f"below {first:,}"] * (low is None) + [f"above {last:,}"] * (high is None)
    return f"; by the spread of readings it may as well lie {' or '.join(ends)}" if ends else ""


def _range(lengths: Sequence[int]) -> str:
    return f"{lengths[0]:,}" if len(lengths) == 1 else f"{lengths[0]:,} to {lengths[-1]:,}"


def _last_crossings(lengths: Sequence[int], logs: np.ndarray) -> np.ndarray:
    """The length of the last change to cheaper, for each row; 0 if always cheaper, inf if not cheaper at the end."""
    cheaper = logs > 0
    found = np.full(len(logs), math.inf)
    found[cheaper.all(axis=1)] = 0.0
    crossing = np.flatnonzero(cheaper[:, -1] & ~cheaper.all(axis=1))
    if len(crossing):
        x = np.log(np.array(lengths, dtype=float))
        left = logs.shape[1] - 1 - np.argmax(~cheaper[crossing, ::-1], axis=1)  # the last one that is dearer
        low, high = logs[crossing, left], logs[crossing, left + 1]
        found[crossing] = np.exp(x[left] + (x[left + 1] - x[left]) * -low / (high - low))
    return found


def _interval(
    lengths: Sequence[int], baseline: Mapping[int, ReadingSummary], mechanism: Mapping[int, ReadingSummary], seed: int
) -> tuple[float | None, float | None] | None:
    """The 95 % interval of crossings of redrawn medians; None where the readings have no spread."""
    errors = [[median_error(series[n]) for n in lengths] for series in (baseline, mechanism)]
    if any(error is None for line in errors for error in line):
        return None
    centre = np.array([math.log(baseline[n].median / mechanism[n].median) for n in lengths])
    error = np.sqrt((np.array(errors, dtype=float) ** 2).sum(axis=0))
    drawn = centre + error * np.random.default_rng(seed).standard_normal((DRAWS, len(lengths)))
    found = _last_crossings(lengths, drawn)
    low, high = np.quantile(found, [0.025, 0.975], method="inverted_cdf")
    return _inside(float(low)), _inside(float(high))


def _inside(length: float) -> float | None:
    return length if 0 < length < math.inf else None


def median_error(sample: ReadingSummary) -> float | None:
    """Standard error of the logarithm of a median, from its quartiles and the number of readings."""
    if not (sample.low and sample.high and sample.count):
        return None
    return MEDIAN_ERROR * abs(math.log(sample.high / sample.low)) / SIGMA / math.sqrt(sample.count)


# ----------------------------------------------------------------------------------------------------------- from cards


def answer(evidence: Evidence) -> Finding:
    """Every mechanism against today's softmax and the naive one, by the `measured` method."""
    found = need_benches(evidence.measurements)
    made = [
        comparison
        for bench in found
        for baseline in BASELINES
        if baseline in bench.mechanisms
        for mode in MODES
        for quantity in QUANTITIES
        for comparison in _on_bench(bench, baseline, "measured", quantity, mode, None)
    ]
    if not made:
        raise DataMissing("Nothing was measured beside softmax; measure it too with longspan measure softmax linear.")
    return _finding(made, "measured")


def compare(
    evidence: Evidence,
    *,
    baseline: str = "softmax",
    method: str = "measured",
    quantity: str = "time",
    mode: str = "forward",
    variant: str | None = None,
    pattern: str | None = None,
) -> Finding:
    """Efficiency lengths from core cards, against any mechanism that was measured on the same bench."""
    _known_words(method, quantity)
    found = [bench for bench in need_benches(evidence.measurements) if pattern in (None, bench.pattern)]
    wanted = str(Spec.parse(baseline))
    known = {mechanism for bench in found for mechanism in bench.mechanisms}
    if not found:
        raise DataMissing(f"No core measurement has the pattern {pattern}; make one with longspan measure --pattern.")
    if wanted not in known:
        raise UnknownName(f"No measurement of the baseline {wanted!r}.{did_you_mean(wanted, known)}")
    made = [
        comparison
        for bench in found
        if wanted in bench.mechanisms
        for comparison in _on_bench(bench, wanted, method, quantity, mode, variant)
    ]
    if not made:
        asked = f"{quantity} in {mode} mode" + (f", {variant} variant" if variant else "")
        raise DataMissing(f"No mechanism shares a measurement of {asked} with {wanted}; measure both the same way.")
    return _finding(made, method)


def compare_file(path: Path, *, baseline: str = "softmax", method: str = "measured", quantity: str = "time") -> Finding:
    """The same from a CSV file, whose mechanism names are taken as they are."""
    _known_words(method, quantity)
    found = csv_measurements.read(path, quantity)
    if baseline not in found:
        hint = did_you_mean(baseline, found)
        raise UnknownName(f"No line of {path.name} is about the baseline {baseline!r}; name one with --baseline.{hint}")
    against = found[baseline]
    made = []
    for mechanism, one in found.items():
        if mechanism != baseline and one.values[quantity]:
            theirs, own = against.values[quantity], one.values[quantity]
            crossing = _crossing(method, quantity, theirs, own, against.refused)
            words = (quantity, "", "", "", shown(path.name))
            lengths = tuple(sorted(theirs.keys() & own.keys()))
            made.append(Comparison(mechanism, shown(mechanism), shown(baseline), *words, lengths, crossing))
    return _finding(made, method)


def _known_words(method: str, quantity: str) -> None:
    if method not in METHODS:
        raise UsageError(f"No method {method!r}.{did_you_mean(method, METHODS)}")
    if quantity not in QUANTITIES:
        raise UsageError(f"No quantity {quantity!r}.{did_you_mean(quantity, QUANTITIES)}")


def _crossing(
    method: str,
    quantity: str,
    baseline: Mapping[int, ReadingSummary],
    mechanism: Mapping[int, ReadingSummary],
    lost: Iterable[int],
) -> Crossing:
    if method == "measured":
        return measured(baseline, mechanism, quantity, lost=lost)
    theirs, own = ({n: one.median for n, one in sorted(series.items())} for series in (baseline, mechanism))
    return cab_2023(theirs, own, quantity)


def _on_bench(
    bench: Bench, baseline: str, method: str, quantity: str, mode: str, wanted: str | None
) -> list[Comparison]:
    against, made = bench.mechanisms[baseline], []
    for mechanism, entry in bench.mechanisms.items():
        variant = _shared_variant(against, entry, quantity, mode, wanted)
        if mechanism == baseline or variant is None:
            continue
        theirs, own = (one.series(quantity, mode, variant) for one in (against, entry))
        crossing = _crossing(method, quantity, theirs, own, against.refused(mode, variant))
        words = (quantity, mode, variant, bench.pattern, bench.where)
        lengths = tuple(sorted(theirs.keys() & own.keys()))
        made.append(Comparison(mechanism, entry.name, shown(baseline), *words, lengths, crossing))
    return made


def _shared_variant(
    one: MeasuredMechanism, other: MeasuredMechanism, quantity: str, mode: str, wanted: str | None
) -> str | None:
    """The variant with the most lengths at which both were measured; ties go to the first of `VARIANTS`."""
    choices = VARIANTS if wanted is None else (wanted,)
    counts = {
        variant: len(one.series(quantity, mode, variant).keys() & other.series(quantity, mode, variant).keys())
        for variant in choices
    }
    best = max(counts, key=lambda variant: counts[variant])
    return best if counts[best] else None


def _finding(made: Sequence[Comparison], method: str) -> Finding:
    notes = {
        "measured": (
            "By measured points: where the difference of logarithms changes its sign for the last time, on a straight "
            "line between two lengths. The interval holds 95 % of the crossings of redrawn medians, so it tells the "
            "spread within a run; a dash at an end is beyond the measured lengths.",
        ),
        "cab-2023": (
            "By the method of CAB: a parabola through the baseline, a straight line through the mechanism (without "
            f"length {DROPPED} for time), and the larger root of their difference. R² is that of the straight line. "
            "There is no crossover with a baseline whose quadratic term is not significant (one-sided t-test, "
            f"{parabola.LEVEL:.1%}). The interval holds 95 % of the crossings of fits drawn from the scatter about "
            "them.",
        ),
    }
    quantities = list(QUANTITIES)
    ordered = sorted(
        made,
        key=lambda one: (one.where, one.pattern, one.mode, quantities.index(one.quantity), one.baseline, _place(one)),
    )
    return Finding(
        "crossover",
        "Efficiency lengths",
        "The length from which on a mechanism costs less than the baseline.",
        COLUMNS,
        tuple(one.row for one in ordered),
        notes[method],
        tuple(ordered),
    )


def _place(one: Comparison) -> tuple[int, float, str]:
    order = {"below": 0, "crosses": 1, "between": 2, "above": 3, "none": 4}
    ends = one.crossing.interval or (None, None)
    return order[one.crossing.status], one.crossing.length or ends[0] or 0.0, one.title
