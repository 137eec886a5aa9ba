"""A leaderboard as a paper prints it: one row per model, one score per task, and what arithmetic makes of them."""

import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from longspan.core.errors import UnknownName, did_you_mean

FIVE = ("listops", "text", "retrieval", "image", "pathfinder")  # the tasks behind the averages that LRA prints
SIX = (*FIVE, "pathx")  # later papers average these and count FAIL as 50
FAIL_AS = {"pathx": 50.0}
ROUNDING = 0.0051  # two decimals were printed


@dataclass(frozen=True)
class PublishedRow:
    """One line of a table.

    `kind`: chance, published (by the paper's authors), external (only listed by them) or later (another paper).
    `printed_over`: how many tasks the printed average is over, five or six.
    """

    title: str
    kind: str
    scores: Mapping[str, float | str]  # as printed (accuracies in percent), "FAIL" or "NA"
    source: str
    printed_average: float | None = None
    also_printed: tuple[tuple[float, str], ...] = ()
    printed_over: int = 5
    mechanism: str | None = None  # the name of this attention here
    paper: str | None = None
    deviations: tuple[str, ...] = ()  # from the rules of the benchmark, in words
    confirmed: str | None = None  # where a number from outside the benchmark's paper was looked up
    printed: Mapping[str, str] = field(default_factory=dict)  # exact digits, where formatting `scores` gives others
    printed_index: str | None = None  # the compositional index

    def average(self, tasks: tuple[str, ...] = FIVE, fail_as: Mapping[str, float] | None = None) -> float | None:
        """The mean over the tasks, in percent; None where a score is missing or FAIL has no value."""
        values = [(fail_as or {}).get(t, "FAIL") if self.scores[t] == "FAIL" else self.scores[t] for t in tasks]
        numbers = [value for value in values if not isinstance(value, str)]
        return statistics.fmean(numbers) if len(numbers) == len(values) else None

    @property
    def recomputed_average(self) -> float | None:
        """The mean of the printed scores by the convention of the printed average."""
        return self.average() if self.printed_over == len(FIVE) else self.average(SIX, FAIL_AS)

    @property
    def average_is_wrong(self) -> bool:
        """Whether the printed average is not the mean of the printed scores."""
        if self.printed_average is None:
            return False
        recomputed = self.recomputed_average
        return recomputed is not None and abs(recomputed - self.printed_average) > ROUNDING


@dataclass(frozen=True)
class PublishedTable:
    """A snapshot of a leaderboard. Where `comparable` is false its rows follow rules of their own.

    `pattern` is that of the slots that the table's models fill; `doubts` are sentences on cells that cannot be right.
    """

    name: str
    title: str
    suite: str
    version: int
    period: str
    paper: str
    source: str
    note: str
    rows: tuple[PublishedRow, ...]
    summary: Mapping[str, Mapping[str, float] | str]  # the printed mean and standard deviation over the models
    comparable: bool = True
    pattern: str = "noncausal_self"
    doubts: tuple[str, ...] = ()

    def row(self, title: str) -> PublishedRow:
        known = {row.title: row for row in self.rows}
        if title not in known:
            raise UnknownName(f"{self.name} has no row {title!r}.{did_you_mean(title, known)}")
        return known[title]

    def counterpart(self, mechanism: str) -> PublishedRow | None:
        """The row of the same attention; a bug-compatible twin (`lra_local`) gets that of its original.

        >>> from longspan import published
        >>> published.load("lra-v1").counterpart("softmax(kernel='flash')").title
        'Transformer'
        """
        name = mechanism.split("(", 1)[0].strip().removeprefix("lra_")
        return next((row for row in self.rows if row.mechanism == name), None) if name else None

    def over(self, tasks: Collection[str]) -> "PublishedTable":
        """The columns of these tasks alone, without averages and spreads that were printed over more of them.

        >>> from longspan import published
        >>> published.load("lra-v1").over(["listops"]).row("Chance").printed_average is None
        True
        """
        rows = (
            replace(
                row,
                scores={task: row.scores[task] for task in tasks},
                printed_average=None,
                also_printed=(),
            )
            for row in self.rows
        )
        return replace(self, rows=tuple(rows), summary={t: s for t, s in self.summary.items() if t in tasks})

    def spread(self, task: str) -> tuple[float, float]:
        """Mean and sample standard deviation over the authors' models, recomputed; `task` may be "average"."""
        models = [row for row in self.rows if row.kind == "published"]
        values = [row.average() if task == "average" else row.scores[task] for row in models]
        numbers = [float(value) for value in values if isinstance(value, float)]
        return statistics.fmean(numbers), statistics.stdev(numbers)

    def spread_is_wrong(self, task: str) -> bool:
        """Whether the printed mean and deviation are not those of the rows, at the digits that were printed."""
        printed = self.summary.get(task)
        if not isinstance(printed, Mapping):
            return False
        mean, std = self.spread(task)
        return (round(mean), round(std, 1)) != (printed["mean"], printed["std"])


def read_leaderboard(content: Mapping[str, Any]) -> PublishedTable:
    """A table from the content of its JSON file."""
    rows = tuple(
        PublishedRow(
            title=row["title"],
            kind=row["kind"],
            scores=row["scores"],
            printed_average=row["printed_average"],
            source=row["source"],
            also_printed=tuple((also["average"], also["source"]) for also in row.get("also_printed", ())),
            printed_over=row.get("printed_over", len(FIVE)),
            mechanism=row.get("mechanism"),
            paper=row.get("paper"),
            deviations=tuple(row.get("deviations", ())),
            confirmed=row.get("confirmed"),
        )
        for row in content["rows"]
    )
    fields = ("name", "title", "suite", "version", "period", "paper", "source", "note")
    return PublishedTable(
        **{key: content[key] for key in fields},
        rows=rows,
        summary=content["summary"]["printed"] if "summary" in content else {},
        comparable=content.get("comparable", True),
    )
