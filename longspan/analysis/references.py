"""How far are networks that may not know the second dimension from those that may? Appendix A.2.1 of Long Range Arena.

The paper names three results on gray CIFAR-10 that break its rules: a convolutional network, a convolution in place of
the embedding, and two-dimensional positions. They are on no board. Our runs on Image are shown beside them: those by
the rules, and those whose settings break them, by what was changed.
"""

import statistics
from dataclasses import dataclass

from longspan import published
from longspan.analysis.cards import Evidence, name_of
from longspan.analysis.finding import Column, Finding
from longspan.analysis.rate_interval import in_percent, rate_interval
from longspan.results.variant import STANDIN, data_of

TASK, TABLE, BOARD, PUBLISHED = "image", "lra-references", "lra-v1", "published"
COLUMNS = (
    Column("Network"),
    Column("From"),
    Column("Image", "percent", "test accuracy"),
    Column("95 % interval", "text", "of the test set, and of seeds where there are several"),
    Column("By the rules"),
    Column("Below the best", "percent", "points below the best reference of the paper"),
    Column("What it may know"),
)


@dataclass(frozen=True)
class ImageScore:
    title: str
    origin: str
    accuracy: float
    interval: tuple[float, float] | None
    by_rules: bool
    about: str


def answer(evidence: Evidence) -> Finding:
    found = [*_own(evidence), *_published()]
    best = max(one.accuracy for one in found if one.origin == PUBLISHED and not one.by_rules)
    rows = tuple(
        (
            one.title,
            one.origin,
            one.accuracy,
            in_percent(one.interval),
            one.by_rules,
            best - one.accuracy,
            one.about,
        )
        for one in found
    )
    nearest = max((one for one in found if one.by_rules), key=lambda one: one.accuracy)
    return Finding(
        "references",
        "Image with and without its second dimension",
        "Test accuracy on gray CIFAR-10 of networks that read pixels in a row, and of some that break the rules.",
        COLUMNS,
        rows,
        (
            published.measured(TABLE).note,
            f"By the rules the best is {nearest.title} ({nearest.origin}), {100 * (best - nearest.accuracy):.1f} "
            "points below a convolutional network.",
            "The paper says neither how these three were trained nor how often.",
        ),
        tuple(found),
    )


def _own(evidence: Evidence) -> list[ImageScore]:
    runs = [c for c in evidence.runs if c["task"] == TASK and c["status"] == "ok" and data_of(c) != STANDIN]
    found = []
    for rules, cards in evidence.same(runs):
        values = [card["score"]["value"] for card in cards]
        ends = rate_interval(values, cards[0]["score"]["count"])
        by_rules = cards[0]["track"] == "fixed" and not cards[0]["overrides"]
        about = "intensities in a row" if by_rules else f"{cards[0]['track']} track, settings of its own"
        found.append(ImageScore(name_of(cards[0]), rules, statistics.fmean(values), ends, by_rules, about))
    return sorted(found, key=lambda one: -one.accuracy)


def _published() -> list[ImageScore]:
    board = published.load(BOARD)
    rows = [row for row in board.rows if row.kind == "published" and isinstance(row.scores[TASK], float)]
    models = [
        ImageScore(row.title, PUBLISHED, float(row.scores[TASK]) / 100, None, True, "intensities in a row")
        for row in sorted(rows, key=lambda row: -float(row.scores[TASK]))
    ]
    outside = [
        ImageScore(row.title, PUBLISHED, row.value(TASK) / 100, None, False, row.note)
        for row in published.measured(TABLE).rows
    ]
    return [*outside, *models]
