"""How do language models fare at other lengths than in training? Figure 3c of the Comprehensive Attention Benchmark.

The paper's numbers are read off its figure and shown beside ours, never mixed with them: the pieces of text differ, so
only the shapes of the curves compare.
"""

import statistics
from dataclasses import dataclass

from longspan import published
from longspan.analysis.cards import Evidence, name_of
from longspan.analysis.finding import Column, Finding
from longspan.core.errors import DataMissing
from longspan.core.printable import shown
from longspan.results.card import Card

COLUMNS = (
    Column("Mechanism"),
    Column("From"),
    Column("Trained at", "count", "tokens"),
    Column("Tested at", "count", "tokens of a block"),
    Column("Perplexity", "number", "mean over seeds"),
    Column("± over seeds", "number"),
    Column("Of trained", "percent", "perplexity divided by that at the length of training"),
    Column("Seeds", "count"),
    Column("Remark"),
)
PAPER = "CAB, figure 3c (read off)"


@dataclass(frozen=True)
class Curve:
    """Perplexity by length; `reasons` say why a length has none."""

    title: str
    mechanism: str
    rules: str
    trained: int
    lengths: tuple[int, ...]
    perplexities: tuple[float | None, ...]
    spreads: tuple[float | None, ...]
    reasons: tuple[str, ...]
    seeds: int


def answer(evidence: Evidence) -> Finding:
    asked = evidence.same(evidence.asked("extrapolation"))
    if not asked:
        raise DataMissing(
            "No language model was tried at other lengths; try one with longspan probe extrapolation CARD, CARD being "
            "that of a run on lm."
        )
    curves = [*(_own(cards, rules) for rules, cards in asked), *_published()]
    rows = []
    for curve in curves:
        base = dict(zip(curve.lengths, curve.perplexities, strict=True)).get(curve.trained)
        points = zip(curve.lengths, curve.perplexities, curve.spreads, curve.reasons, strict=True)
        for length, value, spread, reason in points:
            share = value / base if value is not None and base else None
            start = (curve.title, curve.rules, curve.trained, length, value, spread, share)
            rows.append((*start, curve.seeds or None, reason or None))
    return Finding(
        "extrapolation",
        "Lengths beyond training",
        "Test perplexity of language models in blocks shorter and longer than those they were trained on.",
        COLUMNS,
        tuple(rows),
        (
            "Blocks do not overlap and nothing is seen before a block, so that short ones are harder for everyone.",
            "The paper's rows are read off its figure, to about 0.3 (above 50 to about 1); its pieces are others, so "
            "compare shapes, not numbers.",
        ),
        tuple(curves),
    )


def _own(cards: list[Card], rules: str) -> Curve:
    subject, results = cards[0]["subject"], [card["results"] for card in cards]
    lengths = tuple(point["length"] for point in results[0]["points"])
    means, spreads, reasons = [], [], []
    for length in lengths:
        points = [point for one in results for point in one["points"] if point["length"] == length]
        found = [point["perplexity"] for point in points if point["perplexity"] is not None]
        means.append(statistics.fmean(found) if len(found) == len(points) else None)
        spreads.append(statistics.stdev(found) if len(found) == len(points) > 1 else None)
        reasons.append(shown(next((point["reason"] for point in points if point["reason"]), "")))
    return Curve(
        name_of(subject),
        subject["mechanism"],
        rules,
        results[0]["trained_length"],
        lengths,
        tuple(means),
        tuple(spreads),
        tuple(reasons),
        len(cards),
    )


def _published() -> list[Curve]:
    table = published.measured("cab-extrapolation")
    lengths = tuple(column.length or 0 for column in table.columns)
    curves = []
    for row in table.rows:
        values = tuple(row.value(c.name) if c.name in row.printed else None for c in table.columns)
        reasons = tuple(row.note if value is None else "" for value in values)
        nothing = (None,) * len(lengths)
        curves.append(Curve(row.title, row.mechanism or "", PAPER, 8_192, lengths, values, nothing, reasons, 0))
    return curves
