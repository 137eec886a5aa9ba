"""By CAB's fits, from which length on does a mechanism beat exact attention? Its Table 11 and Figure 2c.

Efficiency lengths in time and memory by the method of CAB (`crossover.py`, cab-2023), from our measurements beside the
printed ones. A length is given only where the whole 95 % interval of the baseline's quadratic coefficient is above 0;
else a sentence says what the coefficient is. Mechanisms that declare n² are not linear and are left out, except those
to which CAB fitted a line.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from longspan import published
from longspan.analysis import parabola
from longspan.analysis.cards import Evidence
from longspan.analysis.comparable import QUANTITIES, VARIANTS, Bench, MeasuredMechanism, need_benches
from longspan.analysis.crossover import BASELINES, Crossing, cab_2023
from longspan.analysis.finding import Column, Finding
from longspan.core.printable import shown

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)  # that CAB fitted to
KINDS = ("time", "memory")
MODES = ("forward", "train")
SETUP = {"dtype": "float32", "batch": "4", "heads": "8", "dim": "64", "module": "layer"}  # CAB's
TABLE = "cab-efficiency-lengths"
PUBLISHED = "published"
COLUMNS = (
    Column("Mechanism"),
    Column("Measured on", context=True),
    Column("Pattern", context=True),
    Column("Mode", context=True),
    Column("Baseline", context=True),
    Column("Time", "count", "efficiency length in tokens"),
    Column("95 % of time", "text", "of fits drawn from the scatter about them"),
    Column("R² of time", "fit", "of the straight line"),
    Column("Memory", "count", "efficiency length in tokens"),
    Column("95 % of memory", "text", "of fits drawn from the scatter about them"),
    Column("R² of memory", "fit", "of the straight line"),
    Column("Where there is none"),
)


@dataclass(frozen=True)
class LengthPair:
    """The efficiency lengths of a mechanism; quantities that were not measured are missing."""

    mechanism: str
    title: str
    where: str
    pattern: str
    mode: str
    baseline: str
    found: dict[str, Crossing]

    @property
    def row(self) -> tuple:
        numbers = []
        for kind in KINDS:
            one = self.found.get(kind)
            numbers += [one and one.length and round(one.length), _ends(one), one and one.r2]
        none = {kind: one.words for kind, one in self.found.items() if one.length is None}
        words = [f"{kind}: {reason.removeprefix('no crossover: ')}" for kind, reason in none.items()]
        place = (self.title, self.where, self.pattern, self.mode, self.baseline)
        return (*place, *numbers, "; ".join(words) or "–")


def _ends(one: Crossing | None) -> str:
    if one is None or one.length is None or one.interval is None:
        return "–"
    low, high = one.interval
    if low is None or high is None:
        return f"at most {high:,.0f}" if high else f"at least {low:,.0f}" if low else "any"
    return f"{low:,.0f} to {high:,.0f}"


def answer(evidence: Evidence) -> Finding:
    pairs, notes = [], []
    for bench in need_benches(evidence.measurements):
        for mode in MODES:
            for baseline in BASELINES:
                if baseline in bench.mechanisms:
                    pairs += _on_bench(bench, mode, baseline)
                    notes += _quadratic(bench, mode, baseline)
    pairs += _published()
    notes.append(published.measured(TABLE).note)
    notes.append(
        "Own numbers compare with the printed ones where the setup is CAB's: longspan measure --preset cab, on a "
        "vanilla attention that stores its matrix, softmax(kernel=plain)."
    )
    return Finding(
        "efficiency_length",
        "Efficiency lengths by the fits of CAB",
        "Tokens from which on a mechanism costs less than exact attention, by a parabola and a straight line.",
        COLUMNS,
        tuple(pair.row for pair in pairs),
        tuple(dict.fromkeys(notes)),
        tuple(pairs),
    )


def _on_bench(bench: Bench, mode: str, baseline: str) -> list[LengthPair]:
    against, pairs = bench.mechanisms[baseline], []
    fitted = {row.mechanism for row in published.measured(TABLE).rows}
    for mechanism, entry in bench.mechanisms.items():
        straight = entry.cost != "n^2" or mechanism.partition("(")[0] in fitted
        if not straight or entry.exact or not entry.ranked:
            continue
        found = {}
        for kind in KINDS:
            theirs, own = (_points(one, kind, mode) for one in (against, entry))
            if theirs and own:
                found[kind] = cab_2023(theirs, own, kind)
        if found:
            names = (mechanism, entry.name, bench.where, bench.pattern, mode, shown(baseline))
            pairs.append(LengthPair(*names, found))
    return sorted(pairs, key=lambda pair: (_order(pair), pair.title.casefold()))


def _order(pair: LengthPair) -> tuple[float, float]:
    memory, time = (pair.found[kind].length if kind in pair.found else None for kind in ("memory", "time"))
    return memory or 0.0, time or 0.0


def _points(entry: MeasuredMechanism, kind: str, mode: str) -> dict[int, float]:
    """Medians at CAB's lengths in the unit that tables show: eager calls for memory, CUDA graphs for time."""
    choices = ("eager", "graph") if kind == "memory" else VARIANTS
    series = next((s for variant in choices if (s := entry.series(kind, mode, variant))), {})
    return {n: QUANTITIES[kind].scale * one.median for n, one in series.items() if n in LENGTHS}


def _quadratic(bench: Bench, mode: str, baseline: str) -> Iterator[str]:
    """A sentence for each quantity on the quadratic term of the parabola through the baseline."""
    for kind in KINDS:
        points = _points(bench.mechanisms[baseline], kind, mode)
        if len(points) < parabola.FEWEST:
            continue
        fit = parabola.parabola(list(points), list(points.values()))
        what = f"{shown(baseline)}, {mode} {kind}, {bench.title}"
        if not fit.bends_upwards:
            yield f"{what}: no length is given, the quadratic term does not differ from 0 (p = {fit.p:.2g})."
            continue
        low, high = (end * max(points) ** 2 / points[max(points)] for end in fit.interval)
        yield f"{what}: of the cost of {max(points):,} tokens the quadratic term is {low:.0%} to {high:.0%} (95 %)."


def _published() -> Sequence[LengthPair]:
    return [
        LengthPair(
            row.mechanism or row.title,
            row.title,
            PUBLISHED,
            "noncausal_self",
            "forward",
            "vanilla",
            {kind: Crossing("crosses", "", row.value(kind), r2=row.value(f"{kind}_r2")) for kind in KINDS},
        )
        for row in published.measured(TABLE).rows
    ]
