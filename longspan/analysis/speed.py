"""How many times faster than softmax, and in how much memory? Tables 2 and 4 of Long Range Arena, and our cards.

Our rows are of two kinds: the arena's network (cards of `longspan measure lra`), and the mechanism by itself (cards of
`longspan measure`, non-causal) at the nearest measured length. Speeds on different hardware do not compare, so every
number is a ratio to softmax at the same length on the same machine; for a paper, the quotient of what it prints.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from longspan import published
from longspan.analysis.cards import Evidence
from longspan.analysis.comparable import Bench, MeasuredMechanism, benches
from longspan.analysis.finding import BETWEEN, Column, Finding
from longspan.analysis.lra_efficiency import BASELINE, MEMORY, PAPER, tables
from longspan.core.printable import shown

LENGTHS = (1000, 2000, 3000, 4000)  # of the paper
NEAREST = {1024: 1000, 2048: 2000, 4096: 4000}  # of a sweep over powers of two
MODES = {"train": "train", "inference": "forward"}  # of the arena, and of a bench
COLUMNS = (
    Column("Mode"),
    Column("Mechanism"),
    Column("From"),
    *(Column(f"{length // 1000}K", "number", "times as fast as softmax") for length in LENGTHS),
    Column("Memory at 4K", "number", "of softmax's"),
)


@dataclass(frozen=True)
class SpeedRatios:
    """A mechanism against softmax: how many times faster at each length, and what part of its memory at the longest."""

    mode: str
    title: str
    origin: str
    ratios: Mapping[int, float | None]
    memory: float | None = None

    @property
    def row(self) -> tuple:
        return (self.mode, self.title, self.origin, *(self.ratios.get(length) for length in LENGTHS), self.memory)


def answer(evidence: Evidence) -> Finding:
    found = [
        bench
        for bench in benches(evidence.measurements)
        if bench.pattern == "noncausal_self" and BASELINE in bench.mechanisms
    ]
    names = _short_names([bench.where for bench in found])
    cores = [row for bench in found for row in _cores(bench, names[bench.where])]
    rows = [*_networks(evidence), *cores, *_published()]
    notes = [published.measured(PAPER[mode][0]).note for mode in MODES]
    notes += [
        f"{short} is a mechanism by itself, not in the arena's network, at 1,024, 2,048 and 4,096 tokens: {where}."
        for where, short in names.items()
    ]
    return Finding(
        "speed",
        "Speed and memory",
        "How many times as fast as softmax a mechanism is at each length, and its memory as a part of softmax's.",
        COLUMNS,
        tuple(row.row for row in sorted(rows, key=lambda row: row.mode != "train")),
        tuple(notes),
    )


def _networks(evidence: Evidence) -> Iterator[SpeedRatios]:
    for table in tables(evidence.measurements):
        exact = next((row for row in table.rows if row.mechanism == BASELINE and row.source == "own"), None)
        for row in table.rows:
            if row.source == "own" and row.mechanism != BASELINE and exact is not None:
                held, of = (
                    one.cells[LENGTHS[-1]].memory_gb if LENGTHS[-1] in one.cells else None for one in (row, exact)
                )
                ratios = {length: cell.ratio for length, cell in row.cells.items()}
                memory = held / of if held and of else None
                yield SpeedRatios(table.mode, shown(row.title), shown(table.title), ratios, memory)


def _short_names(places: list[str]) -> dict[str, str]:
    """The machine and the precision of each bench, or all of its setup where that would not tell two apart.

    >>> _short_names(["A · bf16 · batch 4", "A · fp32 · batch 4"])
    {'A · bf16 · batch 4': 'A · bf16', 'A · fp32 · batch 4': 'A · fp32'}
    """
    short = [BETWEEN.join(place.split(BETWEEN)[:2]) for place in places]
    return {place: name if short.count(name) == 1 else place for place, name in zip(places, short, strict=True)}


def _cores(bench: Bench, origin: str) -> Iterator[SpeedRatios]:
    exact = bench.mechanisms[BASELINE]
    for mode, own in MODES.items():
        for name, one in bench.mechanisms.items():
            ratios = {NEAREST[n]: 1 / ratio for n, ratio in _ratios(exact, one, "time", own, "graph").items()}
            if name != BASELINE and one.ranked and ratios:
                memory = _ratios(exact, one, "memory", own, "eager").get(4096)
                yield SpeedRatios(mode, one.name, origin, ratios, memory)


def _ratios(
    exact: MeasuredMechanism, one: MeasuredMechanism, quantity: str, mode: str, variant: str
) -> dict[int, float]:
    """A mechanism's cost relative to softmax, at the lengths that are near those of the paper."""
    base, own = exact.series(quantity, mode, variant), one.series(quantity, mode, variant)
    return {n: own[n].median / base[n].median for n in NEAREST if n in own and n in base}


def _published() -> Iterator[SpeedRatios]:
    for mode, (name, quantity) in PAPER.items():
        table = published.measured(name)
        for row in table.rows:
            if row.title == table.reference:
                continue
            columns = {length: table.column(quantity, length) for length in LENGTHS}
            ratios = {n: table.ratio(row.title, column.name) for n, column in columns.items() if column}
            held = table.column(MEMORY, LENGTHS[-1])
            memory = table.ratio(row.title, held.name) if held else None
            yield SpeedRatios(mode, row.title, "published", ratios, memory)
