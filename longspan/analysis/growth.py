"""What do time, memory and energy come to at each length? Curves against length, figure 2 a and b of CAB.

Time is shown for every variant, memory for eager calls (a CUDA graph keeps a pool of its own), energy for graphs.
The curve of a mechanism that runs out of memory ends before the others.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from longspan.analysis.cards import Evidence
from longspan.analysis.comparable import QUANTITIES, VARIANTS, Bench, MeasuredMechanism, need_benches
from longspan.analysis.finding import Column, Finding

MODES = ("forward", "train")
ENDINGS = {"oom": "out of memory", "fail": "failed", "refused": "refused by the check", "unsupported": "unsupported"}


@dataclass(frozen=True)
class LengthCurve:
    """One mechanism over the lengths."""

    mechanism: str
    title: str
    x: tuple[float, ...]
    y: tuple[float, ...]

    def at(self, lengths: Iterable[int]) -> list[float | None]:
        """The values at these lengths, None where there are none."""
        known = dict(zip(self.x, self.y, strict=True))
        return [known.get(length) for length in lengths]


@dataclass(frozen=True)
class Curves:
    """Lines that share their axes; both are logarithmic."""

    where: str
    pattern: str
    mode: str
    label: str  # of the quantity, with its unit
    variant: str  # empty where it makes no difference
    lines: tuple[LengthCurve, ...]


def answer(evidence: Evidence) -> Finding:
    found = need_benches(evidence.measurements)
    curves = [one for bench in found for one in _curves(bench)]
    lengths = sorted({int(x) for one in curves for line in one.lines for x in line.x})
    notes = []
    for bench in found:
        notes += [note for entry in bench.mechanisms.values() if (note := _ending(bench, entry))]
    return Finding(
        "growth",
        "Time, memory and energy",
        "A call at growing lengths: µs, MiB at the peak, mJ.",
        (
            Column("Quantity"),
            Column("Mode"),
            Column("Variant", context=True),
            Column("Pattern", context=True),
            Column("Mechanism"),
            *(Column(f"{length:,}", "number") for length in lengths),
            Column("Measured on", context=True),
        ),
        tuple(
            (
                one.label,
                one.mode,
                one.variant,
                one.pattern,
                line.title,
                *line.at(lengths),
                one.where,
            )
            for one in curves
            for line in one.lines
        ),
        (
            "Time is the median of many calls, per call. Memory is the peak allocated during an eager call, inputs "
            "included. Energy is what the device counted over a window of calls, per call.",
            *notes,
        ),
        tuple(curves),
    )


def _curves(bench: Bench) -> Iterator[Curves]:
    for mode in MODES:
        for name, quantity in QUANTITIES.items():
            for variant in ("eager", "graph", "compiled") if name == "memory" else VARIANTS:
                lines = tuple(
                    _line(entry, name, mode, variant, quantity.scale)
                    for entry in bench.mechanisms.values()
                    if entry.series(name, mode, variant)
                )
                if lines:
                    yield Curves(bench.where, bench.pattern, mode, quantity.label, variant, lines)
                    if name != "time":
                        break  # the work is the same in every variant


def _line(entry: MeasuredMechanism, quantity: str, mode: str, variant: str, scale: float) -> LengthCurve:
    series = entry.series(quantity, mode, variant)
    return LengthCurve(
        entry.mechanism,
        entry.name,
        tuple(float(length) for length in series),
        tuple(scale * sample.median for sample in series.values()),
    )


def _ending(bench: Bench, entry: MeasuredMechanism) -> str:
    """Where a mechanism stopped, mode by mode, in a sentence; empty where it ran at every length."""
    parts = []
    for mode in MODES:
        for status, words in ENDINGS.items():
            stops = {length for variant in VARIANTS for length in entry.refused(mode, variant, status)}
            fits = {length for variant in VARIANTS for length in entry.series("time", mode, variant)}
            if stops and (status == "refused" or not stops <= fits):
                longest = f", the longest that ran is {max(fits):,}" if fits else ""
                parts.append(f"{mode} {words} at {min(stops - fits or stops):,}{longest}")
    return f"{entry.title}, {bench.pattern}: {'; '.join(parts)}." if parts else ""
