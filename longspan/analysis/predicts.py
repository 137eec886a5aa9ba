"""Which cheap task predicts which expensive one? Pairs of tasks in which one costs half of the other or less.

A cheap task predicts an expensive one where mechanisms that do well on the one do well on the other: Pearson's r over
those that have both. Many pairs are looked at, so the interval that decides is a simultaneous one (Bonferroni over all
pairs of an origin); that of the single pair is shown beside it. Long Range Arena printed no hours, so its tasks take
part with our runs alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from longspan.analysis.cards import Evidence
from longspan.analysis.correlation import Pair, correlate
from longspan.analysis.finding import Column, Finding
from longspan.analysis.task_columns import TaskColumn, cab_columns, own_columns

CHEAPER = 2.0  # times
LEVEL = 0.05
OWN, PUBLISHED = "own runs", "published"
COLUMNS = (
    Column("From", context=True),
    Column("Expensive"),
    Column("Hours", "number", "of one run"),
    Column("Cheap"),
    Column("Its hours", "number", "of one run"),
    Column("Methods", "count", "that have both"),
    Column("r", "signed", "Pearson's correlation"),
    Column("95 % interval", "text", "of this pair alone, by Fisher's z"),
    Column("Predicts", "text", "whether the simultaneous interval of all pairs lies above 0"),
)


@dataclass(frozen=True)
class Prediction:
    """A cheap task beside an expensive one; `pairs` is how many were looked at."""

    origin: str
    expensive: TaskColumn
    cheap: TaskColumn
    pair: Pair
    pairs: int

    @property
    def simultaneous(self) -> tuple[float, float] | None:
        """The interval that holds together with those of all other pairs."""
        return self.pair.interval_at(1 - LEVEL / self.pairs)

    @property
    def verdict(self) -> str:
        if self.pair.interval is None:
            return "not tested: fewer than four methods"
        low, high = self.simultaneous or (-1.0, 1.0)
        return "yes" if low > 0 else "the other way round" if high < 0 else "not shown"

    @property
    def row(self) -> tuple:
        ends = "–" if self.pair.interval is None else "{:+.2f} to {:+.2f}".format(*self.pair.interval)
        costs = (self.expensive.title, self.expensive.hours, self.cheap.title, self.cheap.hours)
        return (self.origin, *costs, self.pair.methods, self.pair.r, ends, self.verdict)


def answer(evidence: Evidence) -> Finding:
    own, papers = _predictions(OWN, own_columns(evidence.runs)), _predictions(PUBLISHED, cab_columns())
    found = [*own, *papers]
    notes = [_tally(origin, group) for origin, group in ((OWN, own), (PUBLISHED, papers))]
    notes.append("Hours of CAB are those of its Table 15 on A100s, of the backbones of a task together.")
    notes.append(
        "By chance alone one pair of twenty has an interval that leaves out 0: “Predicts” therefore asks for one that "
        "is wide enough for all pairs at once."
    )
    return Finding(
        "predicts",
        "Cheap tasks and expensive ones",
        f"Correlation over mechanisms between tasks of which one costs {CHEAPER:.0f} times the other or more.",
        COLUMNS,
        tuple(one.row for one in found),
        tuple(notes),
        tuple(found),
    )


def _predictions(origin: str, columns: Sequence[TaskColumn]) -> list[Prediction]:
    """Every pair with a correlation, the most expensive task first, its best predictor first."""
    found = []
    for expensive, cheap in permutations(columns, 2):
        if expensive.hours and cheap.hours and expensive.hours >= CHEAPER * cheap.hours:
            pair = correlate(expensive.scores, cheap.scores)
            if pair.r is not None:
                found.append((expensive, cheap, pair))
    found.sort(key=lambda one: (-(one[0].hours or 0.0), one[0].title, -(one[2].r or 0.0)))
    tested = sum(pair.interval is not None for _, _, pair in found)
    return [Prediction(origin, expensive, cheap, pair, max(1, tested)) for expensive, cheap, pair in found]


def _tally(origin: str, found: Sequence[Prediction]) -> str:
    if not found:
        return (
            f"{origin.capitalize()}: no two tasks of which one costs {CHEAPER:.0f} times the other share three "
            "mechanisms that differ."
        )
    tested = [one for one in found if one.pair.interval is not None]
    sure = [f"{one.cheap.title} for {one.expensive.title}" for one in tested if one.verdict == "yes"]
    named = f": {', '.join(sure)}" if sure else ""
    return (
        f"{origin.capitalize()}: of {len(found)} pairs {len(tested)} have four methods or more, and in {len(sure)} the "
        f"cheap task predicts the expensive one{named}."
    )
