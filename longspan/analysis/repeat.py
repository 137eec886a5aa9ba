"""Does a measurement come out the same when it is made again? The same code on the same kind of machine, twice.

For every point that two cards share, the newer median over the older, under CUDA graphs and from 200 µs on: shorter
calls, or eager ones, say more about clocks and hosts than about the work. Cards of different code are not compared,
since there a difference may be intended.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from longspan.analysis.cards import Evidence
from longspan.analysis.comparable import Bench, Reading, benches, need_benches
from longspan.analysis.finding import Column, Finding
from longspan.core.errors import DataMissing
from longspan.results.age import by_date
from longspan.results.card import Card

LEAST = 200e-6  # seconds
NEAR = 0.05  # of the older median
VARIANT = "graph"
COLUMNS = (
    Column("Mechanism"),
    Column("Mode"),
    Column("Pattern", context=True),
    Column("Points", "count", "measured twice"),
    Column("Within 5 %", "count"),
    Column("Farthest, %", "number", "the newer median over the older, less one"),
    Column("At length", "count"),
    Column("Measured on", context=True),
)


@dataclass(frozen=True)
class RepeatedPoint:
    """One point, measured twice."""

    bench: Bench
    name: str
    older: Reading
    newer: Reading

    @property
    def change(self) -> float:
        return self.newer.samples["time"].median / self.older.samples["time"].median - 1

    @property
    def agrees(self) -> bool:
        return abs(self.change) <= NEAR


def answer(evidence: Evidence) -> Finding:
    need_benches(evidence.measurements)
    found = pairs([*evidence.measurements, *evidence.earlier])
    if not found:
        raise DataMissing(
            f"No point of {1e6 * LEAST:.0f} µs or more was measured twice under CUDA graphs by the same code; measure "
            "again into another folder, with longspan measure softmax --variant graph --out again."
        )
    groups: dict[tuple[str, str, str, str], list[RepeatedPoint]] = defaultdict(list)
    for pair in found:
        groups[pair.bench.where, pair.bench.pattern, pair.newer.mode, pair.name].append(pair)
    return Finding(
        "repeat",
        "Measured again",
        "How far the medians of two occasions lie apart, for each mechanism and mode.",
        COLUMNS,
        tuple(_row(*key, group) for key, group in sorted(groups.items())),
        tuple(_notes(found)),
    )


def pairs(cards: Iterable[Card]) -> list[RepeatedPoint]:
    """Every point with the one measured before it, by the same code in the same setup."""
    last: dict[tuple, Reading] = {}
    found: dict[tuple, RepeatedPoint] = {}
    distinct = {card["sha256"]: card for card in cards}.values()
    for card in by_date(distinct):
        for bench in benches([card]):  # none, where the card is of another kind
            (entry,) = bench.mechanisms.values()
            for place, reading in entry.readings.items():
                time = reading.sample("time")
                if reading.variant != VARIANT or time is None or time.median < LEAST:
                    continue
                key = (bench.where, bench.pattern, entry.mechanism, card["code"].get("source_sha256"), place)
                if key in last:
                    found[key] = RepeatedPoint(bench, entry.name, last[key], reading)
                last[key] = reading
    return list(found.values())


def _row(where: str, pattern: str, mode: str, name: str, group: Sequence[RepeatedPoint]) -> tuple:
    farthest = max(group, key=lambda pair: abs(pair.change))
    near = sum(pair.agrees for pair in group)
    return name, mode, pattern, len(group), near, 100 * farthest.change, farthest.newer.length, where


def _notes(found: Sequence[RepeatedPoint]) -> list[str]:
    near = sum(pair.agrees for pair in found)
    notes = [f"{near:,} of {len(found):,} points agree within {NEAR:.0%} ({near / len(found):.1%})."]
    for pair in sorted((pair for pair in found if not pair.agrees), key=lambda pair: -abs(pair.change)):
        older, newer = (1e6 * one.samples["time"].median for one in (pair.older, pair.newer))
        what = f"{pair.name}, {pair.newer.mode}, {pair.bench.pattern}, {pair.newer.length:,} tokens"
        notes.append(f"Apart: {what}, {older:,.0f} and {newer:,.0f} µs ({pair.change:+.1%}).")
    return notes
