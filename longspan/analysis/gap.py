"""How much better are models on what they were trained on? Table 3 of Long Range Arena, and our models beside it."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from longspan import published
from longspan.analysis.cards import Evidence, name_of
from longspan.analysis.finding import Column, Finding
from longspan.analysis.rate_interval import in_percent
from longspan.results.card import Card
from longspan.results.variant import STANDIN, data_of

TASK = "image"  # the one the paper looked at; our models may be of any task that is scored by accuracy
COLUMNS = (
    Column("Task"),
    Column("Mechanism"),
    Column("From"),
    Column("Train", "percent"),
    Column("Test", "percent"),
    Column("Gap", "percent", "train minus test"),
    Column("95 % interval", "text", "of the gap, by the examples behind both and the seeds"),
    Column("Printed gap", "percent", "of the same mechanism in Table 3"),
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
    interval: tuple[float, float] | None = None  # of the gap
    printed: float | None = None

    @property
    def gap(self) -> float:
        return self.train - self.test


def answer(evidence: Evidence) -> Finding:
    pairs = [*_asked(evidence), *_logged(evidence), *_published()]
    rows = tuple(
        (p.task, p.title, p.origin, p.train, p.test, p.gap, in_percent(p.interval), p.printed, p.seeds) for p in pairs
    )
    notes = [published.measured("lra-generalisation").note, _covered(pairs)]
    if any("during training" not in pair.origin for pair in pairs if pair.seeds is not None):
        notes.append("Of probed models the training accuracy is that without dropout.")
    if any("during training" in pair.origin for pair in pairs):
        notes.append(
            "“During training” is the accuracy logged between two evaluations, with dropout on; "
            "longspan probe gap CARD measures it as it should be."
        )
    return Finding(
        "gap",
        "Generalisation gap",
        "Accuracy on the training set beside that on the test set.",
        COLUMNS,
        rows,
        tuple(notes),
        tuple(pairs),
    )


def _asked(evidence: Evidence) -> list[TrainTestGap]:
    """From the probe's cards."""
    pairs = []
    for rules, cards in evidence.same(evidence.asked("gap")):
        subject = cards[0]["subject"]
        train, test = (statistics.fmean(card["results"][split]["accuracy"] for card in cards) for split in _SPLITS)
        gaps = [card["results"]["train"]["accuracy"] - card["results"]["test"]["accuracy"] for card in cards]
        counts = [cards[0]["results"][split]["count"] for split in _SPLITS]
        named = (subject["task"], name_of(subject), subject["mechanism"], rules, train, test, len(cards))
        ends = _interval((train, test), counts, gaps)
        pairs.append(TrainTestGap(*named, ends, _printed(subject["task"], subject["mechanism"])))
    return sorted(pairs, key=lambda pair: (pair.task != TASK, pair.task, pair.origin, -pair.gap))


_SPLITS = ("train", "test")


def _interval(rates: Sequence[float], counts: Sequence[int], gaps: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the gap, over the sampling of both sets of examples and, if there are several, of seeds."""
    variance = sum(max(0.0, rate * (1 - rate)) / max(1, count) for rate, count in zip(rates, counts, strict=True))
    variance += statistics.variance(gaps) / len(gaps) if len(gaps) > 1 else 0.0
    middle, half = statistics.fmean(gaps), 1.96 * math.sqrt(variance)
    return middle - half, middle + half


def _printed(task: str, mechanism: str) -> float | None:
    row = published.measured("lra-generalisation").counterpart(mechanism) if task == TASK else None
    return None if row is None else (row.value("train") - row.value("test")) / 100


def _covered(pairs: Sequence[TrainTestGap]) -> str:
    """How many of the paper's models have one of our numbers beside them."""
    printed = {pair.mechanism for pair in pairs if pair.origin == "published"}
    own = {pair.mechanism.partition("(")[0] for pair in pairs if pair.origin != "published" and pair.task == TASK}
    return f"Own numbers on Image stand beside {len(own & printed)} of the {len(printed)} models of the paper."


def _logged(evidence: Evidence) -> list[TrainTestGap]:
    """From runs without a probe card: the training accuracy in their log at the reported step."""
    answered = {card["subject"]["card"] for card in evidence.asked("gap")}
    runs = [card for card in evidence.runs if card["sha256"] not in answered and _logged_train(card) is not None]
    return [
        TrainTestGap(
            cards[0]["task"],
            name_of(cards[0]),
            cards[0]["mechanism"],
            f"{rules}, during training",
            statistics.fmean(_logged_train(card) or 0.0 for card in cards),
            statistics.fmean(card["score"]["value"] for card in cards),
            len(cards),
            printed=_printed(cards[0]["task"], cards[0]["mechanism"]),
        )
        for rules, cards in evidence.same(runs)
    ]


def _logged_train(run: Card) -> float | None:
    """The training accuracy in the log of a finished run that is scored by accuracy, up to the reported step."""
    if run["status"] != "ok" or run["score"]["name"] != "accuracy" or data_of(run) == STANDIN:
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
