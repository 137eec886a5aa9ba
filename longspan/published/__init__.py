"""The papers' own tables as data: every number as printed, with its source, beside what arithmetic gives.

    table = load("lra-v1")
    row = table.row("Sinkhorn Trans.")
    row.printed_average, row.average(), row.average_is_wrong        # 52.78, 51.582, True

Scores are percentages, as the papers print them. FAIL and missing entries stay what they are; nothing is filled in.
"""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from longspan.core.errors import UnknownName, did_you_mean

FILES = {"lra-v0": "lra_v0.json", "lra-v1": "lra_v1.json"}
FIVE = ("listops", "text", "retrieval", "image", "pathfinder")  # the tasks behind the averages that LRA prints
ROUNDING = 0.0051  # two decimals were printed


@dataclass(frozen=True)
class PublishedRow:
    """One line of a table. `kind`: chance, published (by the paper's authors) or external (only listed by them)."""

    title: str
    kind: str
    scores: Mapping[str, float | str]  # a percentage, "FAIL" or "NA"
    printed_average: float
    source: str
    also_printed: tuple[tuple[float, str], ...] = ()

    def average(self, tasks: tuple[str, ...] = FIVE, fail_as: Mapping[str, float] | None = None) -> float | None:
        """The mean over the tasks, in percent; None where a score is missing or FAIL counts for nothing."""
        values = [(fail_as or {}).get(t, "FAIL") if self.scores[t] == "FAIL" else self.scores[t] for t in tasks]
        numbers = [value for value in values if not isinstance(value, str)]
        return statistics.fmean(numbers) if len(numbers) == len(values) else None

    @property
    def average_is_wrong(self) -> bool:
        """Whether the printed average is not the mean of the five printed scores."""
        recomputed = self.average()
        return recomputed is not None and abs(recomputed - self.printed_average) > ROUNDING


@dataclass(frozen=True)
class PublishedTable:
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

    def row(self, title: str) -> PublishedRow:
        known = {row.title: row for row in self.rows}
        if title not in known:
            raise UnknownName(f"{self.name} has no row {title!r}.{did_you_mean(title, known)}")
        return known[title]

    def spread(self, task: str) -> tuple[float, float]:
        """Mean and sample standard deviation over the authors' models, recomputed; `task` may be "average"."""
        models = [row for row in self.rows if row.kind == "published"]
        values = [row.average() if task == "average" else row.scores[task] for row in models]
        numbers = [float(value) for value in values if isinstance(value, float)]
        return statistics.fmean(numbers), statistics.stdev(numbers)


def names() -> list[str]:
    return list(FILES)


@cache
def load(name: str) -> PublishedTable:
    """A published table by name: `lra-v0` (Tables 1 and 7) or `lra-v1` (Table 6)."""
    if name not in FILES:
        raise UnknownName(f"No published table named {name!r}.{did_you_mean(name, FILES)}")
    content = json.loads(resources.files(__name__).joinpath(FILES[name]).read_text(encoding="utf-8"))
    rows = tuple(
        PublishedRow(
            title=row["title"],
            kind=row["kind"],
            scores=row["scores"],
            printed_average=row["printed_average"],
            source=row["source"],
            also_printed=tuple((also["average"], also["source"]) for also in row.get("also_printed", ())),
        )
        for row in content["rows"]
    )
    fields = ("name", "title", "suite", "version", "period", "paper", "source", "note")
    return PublishedTable(**{key: content[key] for key in fields}, rows=rows, summary=content["summary"]["printed"])
