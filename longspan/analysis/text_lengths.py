"""At which length is Text best? The paper's Text column is the best of 1,000 to 4,000 bytes for each model.

Choosing the best of four test scores flatters every model, and more so one whose scores scatter more. Where validation
is not the test set, the length chosen by validation is shown beside it: its score is an honest one. A mechanism that
lacks a length has no best of four.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from longspan import published, suites
from longspan.analysis.cards import Evidence, name_of
from longspan.analysis.finding import Column, Finding
from longspan.core.errors import DataMissing
from longspan.core.printable import shown
from longspan.results.alike import row_mechanism
from longspan.results.card import Card
from longspan.results.variant import STANDIN, data_of

TASKS = next(best.of for best in suites.get("lra").best_of if best.task == "text")
VALID_IS_TEST = ("lra-paper", "lra-released")
PRINTED = "lra-v1"
COLUMNS = (
    Column("Mechanism"),
    Column("From"),
    *(Column(suites.variant(task), "percent", "test accuracy, mean over seeds") for task in TASKS),
    Column("Best of four", "percent", "as in the paper, chosen by the test score"),
    Column("By validation", "percent", "the test score at the length with the best validation score"),
    Column("At"),
    Column("Seeds", "count", "the fewest behind a length"),
    Column("Printed", "percent", "the best of four, leaderboard version 1"),
)


@dataclass(frozen=True)
class TextLengths:
    """Test and validation accuracy of one mechanism by task, as means over seeds."""

    title: str
    mechanism: str
    origin: str
    test: Mapping[str, float]
    valid: Mapping[str, float]  # empty where validation is the test set
    seeds: int
    printed: float | None

    @property
    def best(self) -> float | None:
        return max(self.test.values()) if len(self.test) == len(TASKS) else None

    @property
    def chosen(self) -> str | None:
        """The length with the best validation score, where all four have one."""
        return max(TASKS, key=lambda task: self.valid[task]) if len(self.valid) == len(TASKS) else None

    @property
    def row(self) -> tuple:
        honest = self.test[self.chosen] if self.chosen else None
        at = suites.variant(self.chosen) if self.chosen else "–"
        scores = (self.test.get(task) for task in TASKS)
        return (self.title, self.origin, *scores, self.best, honest, at, self.seeds, self.printed)


def answer(evidence: Evidence) -> Finding:
    groups: dict[tuple, dict[str, list[Card]]] = defaultdict(lambda: defaultdict(list))
    for card in evidence.runs:
        ok = card["status"] == "ok" and not card["overrides"] and data_of(card) != STANDIN
        if ok and card["task"] in TASKS:
            key = (card["protocol"], card["tier"], data_of(card), row_mechanism(card))
            groups[key][card["task"]].append(card)
    found = [_lengths(evidence, by_task) for _, by_task in sorted(groups.items(), key=lambda item: item[0])]
    if not found:
        raise DataMissing(f"No run of {', '.join(TASKS)} was found; make some with longspan run {' '.join(TASKS)}.")
    missing = [f"{one.title}, {one.origin}" for one in found if one.best is None]
    notes = [f"No best of four, for want of a length: {'; '.join(missing)}."] if missing else []
    notes.append(
        "The best of four test scores flatters each of them; the score at the length chosen by validation does not."
    )
    notes.append("Under lra-paper and lra-released validation is the test set, so that nothing honest can be chosen.")
    return Finding(
        "text_lengths",
        "Text at four lengths",
        "Test accuracy on reviews of 1,000 to 4,000 bytes, and the best of them.",
        COLUMNS,
        tuple(one.row for one in found),
        tuple(notes),
        tuple(found),
    )


def _lengths(evidence: Evidence, by_task: Mapping[str, list[Card]]) -> TextLengths:
    card = next(iter(by_task.values()))[0]
    test = {task: statistics.fmean(one["score"]["value"] for one in cards) for task, cards in by_task.items()}
    valid = {}
    if card["protocol"] not in VALID_IS_TEST:
        for task, cards in by_task.items():
            splits = [(one["metrics"] or {}).get("valid", {}) for one in cards]
            seen = [found["accuracy"]["value"] for found in splits if "accuracy" in found]
            valid |= {task: statistics.fmean(seen)} if seen else {}
    row = published.load(PRINTED).counterpart(card["mechanism"])
    printed = row.scores["text"] if row is not None and card["track"] == "fixed" else None
    return TextLengths(
        name_of(card),
        shown(card["mechanism"]),
        evidence.rules(card),
        test,
        valid,
        min(map(len, by_task.values())),
        printed / 100 if isinstance(printed, float) else None,
    )
