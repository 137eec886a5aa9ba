"""How far must attention reach, task by task? The required attention span of Long Range Arena, figure 2.

The paper prints bars without numbers, so only our probes are shown.
"""

import statistics
from dataclasses import dataclass

from longspan.analysis.cards import Evidence, name_of
from longspan.analysis.finding import Column, Finding
from longspan.core.errors import DataMissing
from longspan.results.card import Card

COLUMNS = (
    Column("Task"),
    Column("Mechanism"),
    Column("From"),
    Column("Span", "number", "tokens between a query and what it attends to, on average"),
    Column("± over seeds", "number"),
    Column("Uniform", "number", "the span of attention that treats all tokens alike"),
    Column("Length", "number", "tokens of an example, on average"),
    Column("Of length", "percent"),
    Column("Examples", "count", "validation examples behind each seed"),
    Column("By"),
    Column("Seeds", "count"),
)


@dataclass(frozen=True)
class Bar:
    task: str
    title: str
    mechanism: str
    rules: str
    span: float
    spread: float | None
    uniform: float
    length: float
    samples: int
    source: str  # weights or gradients
    seeds: int


def answer(evidence: Evidence) -> Finding:
    bars = [_bar(cards, rules) for rules, cards in evidence.same(evidence.asked("span"))]
    if not bars:
        raise DataMissing(
            "No model was asked for its attention span; ask one with longspan probe span CARD, CARD being that of a "
            "run."
        )
    rows = tuple(
        (
            bar.task,
            bar.title,
            bar.rules,
            bar.span,
            bar.spread,
            bar.uniform,
            bar.length,
            bar.span / bar.length if bar.length else None,
            bar.samples,
            bar.source,
            bar.seeds,
        )
        for bar in bars
    )
    notes = ["Distances are counted along the sequence, in images too; padding and the class token do not count."]
    if {bar.source for bar in bars} == {"weights", "gradients"}:
        notes.append(
            "Spans by weights are of attention matrices, those by gradients of how much a token moves the output of "
            "the same layer; compare within a kind."
        )
    return Finding(
        "span",
        "Required attention span",
        "The mean distance, in tokens, between a query and what it attends to in a trained model.",
        COLUMNS,
        rows,
        tuple(notes),
        tuple(bars),
    )


def _bar(cards: list[Card], rules: str) -> Bar:
    subject, results = cards[0]["subject"], [card["results"] for card in cards]
    spans = [one["mean"] for one in results]
    return Bar(
        subject["task"],
        name_of(subject),
        subject["mechanism"],
        rules,
        statistics.fmean(spans),
        statistics.stdev(spans) if len(spans) > 1 else None,
        statistics.fmean(one["uniform"] for one in results),
        statistics.fmean(one["length"] for one in results),
        min(one["samples"] for one in results),
        results[0]["source"],
        len(cards),
    )
