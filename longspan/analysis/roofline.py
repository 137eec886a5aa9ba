"""How near does each mechanism come to what the device can do? Achieved operations against operations per byte.

No call can be faster than its floor: the bytes that must move at the measured bandwidth, or the operations that must be
done at the measured rate, whichever takes longer. Operations per byte are counted operations over the bytes that must
move, so that a point's distance from the roof is the work that better code could still save.
"""

from dataclasses import dataclass

from longspan.analysis.cards import Evidence
from longspan.analysis.comparable import Bench, Reading, need_benches
from longspan.analysis.finding import Column, Finding
from longspan.analysis.growth import LengthCurve
from longspan.core.errors import DataMissing

MODES = ("forward", "train")
LENGTHS = (4096, 16384)  # shown in the table; the figure has all lengths
COLUMNS = (
    Column("Mechanism"),
    Column("Mode", context=True),
    Column("Pattern", context=True),
    Column("Length", "count"),
    Column("Over its floor", "number", "measured time over the least possible"),
    Column("Time, µs", "number"),
    Column("Floor, µs", "number"),
    Column("Bound by"),
    Column("TFLOP/s", "number", "achieved"),
    Column("GB/s", "number", "achieved"),
    Column("Variant", context=True),
    Column("Measured on", context=True),
)


@dataclass(frozen=True)
class Roof:
    """Lines through the lengths of each mechanism, below the two ceilings."""

    where: str
    pattern: str
    mode: str
    variant: str
    bandwidth: float | None  # bytes per second
    rate: float | None  # operations per second
    lines: tuple[LengthCurve, ...]
    lengths: tuple[tuple[int, ...], ...]  # of the points of each line


def answer(evidence: Evidence) -> Finding:
    found = need_benches(evidence.measurements)
    roofs = [roof for bench in found for mode in MODES if (roof := _roof(bench, mode)) is not None]
    rows = [row for bench in found for mode in MODES for row in _rows(bench, mode)]
    if not rows:
        raise DataMissing("No measurement has a floor to compare with; make some with longspan measure softmax linear.")
    notes = ["Sorted by the distance from the floor, the slowest code first."]
    for bench in found:
        if bench.bandwidth and bench.rate:
            ceilings = f"{bench.bandwidth / 1e9:,.0f} GB/s and {bench.rate / 1e12:,.1f} TFLOP/s"
            notes.append(f"Ceilings measured on {bench.where}: {ceilings}.")
    return Finding(
        "roofline",
        "Roofline",
        "Time over the least possible on this device, and the operations per second that were reached.",
        COLUMNS,
        tuple(rows),
        tuple(dict.fromkeys(notes)),
        tuple(roofs),
    )


def _chosen(bench: Bench, mode: str) -> dict[str, str]:
    """The variant shown for each mechanism."""
    pairs = ((name, entry.variant("time", mode)) for name, entry in bench.mechanisms.items())
    return {name: variant for name, variant in pairs if variant is not None}


def _roof(bench: Bench, mode: str) -> Roof | None:
    lines, lengths = [], []
    variants = _chosen(bench, mode)
    for name, variant in variants.items():
        entry = bench.mechanisms[name]
        points = [
            (length, reading.operations / reading.floor_bytes, reading.operations_per_second)
            for (length, own_mode, own), reading in sorted(entry.readings.items())
            if (own_mode, own) == (mode, variant)
            and reading.status == "ok"
            and reading.operations
            and reading.floor_bytes
            and reading.operations_per_second
        ]
        if points:
            x, y = tuple(point[1] for point in points), tuple(point[2] / 1e12 for point in points)
            lines.append(LengthCurve(name, entry.name, x, y))
            lengths.append(tuple(point[0] for point in points))
    if not lines:
        return None
    shown_variants = ", ".join(sorted({variants[line.mechanism] for line in lines}))
    where = (bench.where, bench.pattern, mode, shown_variants)
    return Roof(*where, bench.bandwidth, bench.rate, tuple(lines), tuple(lengths))


def _rows(bench: Bench, mode: str) -> list[tuple]:
    """The lengths of the table that were measured, else the longest of the bench; the slowest code first."""
    lengths = [length for length in bench.lengths(mode) if length in LENGTHS] or bench.lengths(mode)[-1:]
    rows = []
    for length in lengths:
        found = []
        for name, variant in _chosen(bench, mode).items():
            reading = bench.mechanisms[name].reading(length, mode, variant)
            if reading is not None and reading.status == "ok" and reading.ratio:
                found.append(_row(bench, bench.mechanisms[name].name, reading))
        rows += sorted(found, key=lambda row: -row[4])
    return rows


def _row(bench: Bench, title: str, reading: Reading) -> tuple:
    time = reading.sample("time")
    return (
        title,
        reading.mode,
        bench.pattern,
        reading.length,
        reading.ratio,
        None if time is None else 1e6 * time.median,
        None if reading.floor_seconds is None else 1e6 * reading.floor_seconds,
        reading.bound,
        None if reading.operations_per_second is None else reading.operations_per_second / 1e12,
        None if reading.bytes_per_second is None else reading.bytes_per_second / 1e9,
        reading.variant,
        bench.where,
    )
