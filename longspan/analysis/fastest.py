"""Which mechanism is fastest for each pattern, length and mode, and which of those that are exact?

Each mechanism counts with its fastest variant. Ablations and twins of released code are not ranked.
"""

from dataclasses import dataclass

from longspan.analysis.cards import Evidence
from longspan.analysis.comparable import MODES, Bench, LengthEstimate, MeasuredMechanism, need_benches
from longspan.analysis.finding import Column, Finding

COLUMNS = (
    Column("Measured on", context=True),
    Column("Pattern", context=True),
    Column("Mode"),
    Column("Length", "count"),
    Column("Fastest"),
    Column("µs", "number", "a call, or a token in decoding"),
    Column("Variant"),
    Column("Fastest exact"),
    Column("µs of it", "number"),
    Column("Times faster", "number", "exact over fastest"),
    Column("Of", "count", "mechanisms measured there"),
)


@dataclass(frozen=True)
class Entry:
    """A mechanism in a ranking."""

    measured: MeasuredMechanism
    time: LengthEstimate


def ranking(bench: Bench, mode: str, length: int) -> list[Entry]:
    """Mechanisms by their time at a length, the fastest first; what was not measured around it is left out."""
    found = [
        Entry(measured, time)
        for measured in bench.mechanisms.values()
        if measured.ranked and (time := measured.best_estimate("time", mode, length)) is not None
    ]
    return sorted(found, key=lambda entry: entry.time.value)


def answer(evidence: Evidence) -> Finding:
    found = need_benches(evidence.measurements)
    rows = []
    for bench in found:
        for mode in MODES:
            for length in bench.lengths(mode):
                ranked = [entry for entry in ranking(bench, mode, length) if entry.time.between is None]
                if ranked:
                    rows.append(_row(bench, mode, length, ranked))
    return Finding(
        "fastest",
        "The fastest",
        "For each pattern, mode and length; longspan advise answers from the same cards.",
        COLUMNS,
        tuple(rows),
        (
            "Each mechanism counts with its fastest variant (eager, graph or compiled). Speed is not quality: what is "
            "not exact computes another function.",
        ),
    )


def _row(bench: Bench, mode: str, length: int, ranked: list[Entry]) -> tuple:
    best = ranked[0]
    exact = next((entry for entry in ranked if entry.measured.exact), None)
    start = (bench.where, bench.pattern, mode, length, best.measured.name, 1e6 * best.time.value, best.time.variant)
    if exact is None:
        return (*start, None, None, None, len(ranked))
    times = exact.time.value / best.time.value
    return (*start, exact.measured.name, 1e6 * exact.time.value, times, len(ranked))
