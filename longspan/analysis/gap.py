"""How much better are models on what they were trained on? Table 3 of Long Range Arena, and own models beside it."""

import statistics
from dataclasses import dataclass

from longspan import published
from longspan.analysis.cards import Evidence, name_of
from longspan.analysis.finding import Column, Finding
from longspan.results.card import Card

TASK = "image"  # the one the paper looked at
COLUMNS = (
    Column("Task"),
    Column("Mechanism"),
    Column("From"),
    Column("Train", "percent"),
    Column("Test", "percent"),
    Column("Gap", "percent", "train minus test"),
    Column("Seeds", "count"),
)


@dataclass(frozen=True)
class TrainTestGap:
    """Train and test accuracy of one mechanism, as fractions; means over seeds."""

    task: str
    title: str
    mechanism: str
    origin: str
    train: float
    test: float
    seeds: int | None  # None: not stated

    @property
    def gap(self) -> float:
        return self.train - self.test


def answer(evidence: Evidence) -> Finding:
    pairs = [*_asked(evidence), *_logged(evidence), *_published()]
    rows = tuple((p.task, p.title, p.origin, p.train, p.test, p.gap, p.seeds) for p in pairs)
    notes = [published.measured("lra-generalisation").note]
    if any("during training" in pair.origin for pair in pairs):
        notes.append(
            "“During training” is the accuracy logged between two evaluations, with dropout on; "
            "longspan probe gap CARD measures it as it should be."
        )
    return Finding(
        "gap",
        "Generalisation gap",
        "Accuracy on the training set, without dropout, beside that on the test set.",
        COLUMNS,
        rows,
        tuple(notes),
        tuple(pairs),
    )


def _asked(evidence: Evidence) -> list[TrainTestGap]:
    """What models answered to the probe."""
    pairs = []
    for rules, cards in evidence.same(evidence.asked("gap")):
        subject = cards[0]["subject"]
        train, test = (statistics.fmean(card["results"][split]["accuracy"] for card in cards) for split in _SPLITS)
        pairs.append(
            TrainTestGap(subject["task"], name_of(subject), subject["mechanism"], rules, train, test, len(cards))
        )
    return sorted(pairs, key=lambda pair: (pair.task != TASK, pair.task, pair.origin, -pair.gap))


_SPLITS = ("train", "test")


def _logged(evidence: Evidence) -> list[TrainTestGap]:
    """Runs on Image that were not asked: the accuracy their log holds at the reported step."""
    answered = {card["subject"]["card"] for card in evidence.asked("gap")}
    runs = [card for card in evidence.runs if card["sha256"] not in answered and _logged_train(card) is not None]
    return [
        TrainTestGap(
            TASK,
            name_of(cards[0]),
            cards[0]["mechanism"],
            f"{rules}, during training",
            statistics.fmean(_logged_train(card) or 0.0 for card in cards),
            statistics.fmean(card["score"]["value"] for card in cards),
            len(cards),
        )
        for rules, cards in evidence.same(runs)
    ]


def _logged_train(run: Card) -> float | None:
    """The training accuracy in the log of a finished run on Image, up to the reported step."""
    if run["task"] != TASK or run["status"] != "ok":
        return None
    logged = [point.get("train_accuracy") for point in run["curve"] if point["step"] <= (run["selected_step"] or 0)]
    return logged[-1] if logged else None


def _published() -> list[TrainTestGap]:
    table = published.measured("lra-generalisation")
    return [
        TrainTestGap(
            TASK,
            row.title,
            row.mechanism or row.title,
            "published",
            row.value("train") / 100,
            row.value("test") / 100,
            None,
        )
        for row in table.rows
    ]
