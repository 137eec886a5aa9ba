"""What does a token cost in decoding, and how large is the state? Against the length of the context."""

from longspan.analysis.cards import Evidence
from longspan.analysis.comparable import VARIANTS, Bench, MeasuredMechanism, need_benches
from longspan.analysis.finding import Column, Finding
from longspan.analysis.growth import Curves, LengthCurve
from longspan.core.errors import DataMissing

TIME, STATE = "time per token, ms", "state, KiB"


def answer(evidence: Evidence) -> Finding:
    curves = [one for bench in need_benches(evidence.measurements) for one in _curves(bench)]
    if not curves:
        raise DataMissing("No decoding was measured; do it with longspan measure linear --pattern CS --mode decode.")
    lengths = sorted({int(x) for one in curves for line in one.lines for x in line.x})
    rows = tuple(
        (
            one.label,
            one.pattern,
            line.title,
            one.variant or None,
            *line.at(lengths),
            one.where,
        )
        for one in curves
        for line in one.lines
    )
    columns = (
        Column("Quantity"),
        Column("Pattern", context=True),
        Column("Mechanism"),
        Column("Variant", context=True),
        *(Column(f"{length:,}", "number") for length in lengths),
        Column("Measured on", context=True),
    )
    return Finding(
        "decode",
        "Decoding",
        "One more token after a context of each length: milliseconds, and the bytes of the state it is computed from.",
        columns,
        rows,
        ("The state is what step() needs of the past, for the whole batch.",),
        tuple(curves),
    )


def _curves(bench: Bench) -> list[Curves]:
    """The times of each variant, and the state sizes, which are the same for all variants."""
    made = []
    for variant in VARIANTS:
        times = tuple(line for one in bench.mechanisms.values() if (line := _times(one, variant)).x)
        if times:
            made.append(Curves(bench.where, bench.pattern, "decode", TIME, variant, times))
    states = tuple(line for one in bench.mechanisms.values() if (line := _states(one)).x)
    if states:
        made.append(Curves(bench.where, bench.pattern, "decode", STATE, "", states))
    return made


def _times(entry: MeasuredMechanism, variant: str) -> LengthCurve:
    series = entry.series("time", "decode", variant)
    return LengthCurve(
        entry.mechanism,
        entry.name,
        tuple(float(length) for length in series),
        tuple(1e3 * sample.median for sample in series.values()),
    )


def _states(entry: MeasuredMechanism) -> LengthCurve:
    found = {
        float(length): reading.state_bytes / 1024
        for (length, mode, _), reading in sorted(entry.readings.items())
        if mode == "decode" and reading.status == "ok" and reading.state_bytes
    }
    return LengthCurve(entry.mechanism, entry.name, tuple(found), tuple(found.values()))
