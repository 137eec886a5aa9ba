"""The constants of CAB's compositional index: what each metric's z-score is computed from, by pattern.

    known = index_constants()
    known.patterns["causal_self"].measure("lm_perplexity").scales["cab-2023"]       # Scale(mean=22.26, std=8.29944)

`cab-2023` are the published ones, `longspan` the same recomputed; both are frozen, and a change is a new version.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Literal

FILE = "cab_index.json"
Unit = Literal["percent", "plain"]


@dataclass(frozen=True)
class Scale:
    """Mean and sample standard deviation over the pool, in the unit in which scores are printed."""

    mean: float
    std: float


@dataclass(frozen=True)
class Measure:
    """One metric of a task, averaged over the settings in which the task is run: a column of a board.

    `scales` are the means and deviations of its z-scores, by name of the constants, in the unit of the scores shown.
    """

    name: str
    title: str
    settings: tuple[str, ...]
    metric: str
    higher_is_better: bool
    unit: Unit
    task: str
    scales: Mapping[str, Scale] = field(default_factory=dict)
    printed: tuple[str, str] | None = None  # mean and deviation as the paper prints them, where legible
    released: Scale | None = None  # as the released script has them, where that differs

    @property
    def factor(self) -> int:
        """The factor from a score as cards store it to the number that is shown."""
        return 100 if self.unit == "percent" else 1

    def z(self, score: float, constants: str) -> float:
        """How many standard deviations a score is better than the mean."""
        scale = self.scales[constants]
        return (1 if self.higher_is_better else -1) * (self.factor * score - scale.mean) / scale.std


@dataclass(frozen=True)
class IndexPattern:
    """What is measured under a pattern, the table of its scores, and where the paper prints its constants."""

    pattern: str
    code: str
    table: str
    constants: str
    measures: tuple[Measure, ...]

    def measure(self, name: str) -> Measure:
        return next(measure for measure in self.measures if measure.name == name)

    @property
    def tasks(self) -> dict[str, tuple[Measure, ...]]:
        names = dict.fromkeys(measure.task for measure in self.measures)
        return {name: tuple(measure for measure in self.measures if measure.task == name) for name in names}


@dataclass(frozen=True)
class IndexConstants:
    """`pool`: the mechanisms that the paper says means and deviations are over; `about` and `versions` are by name."""

    paper: str
    source: str
    note: str
    tasks: Mapping[str, str]  # titles
    pool: tuple[str, ...]
    versions: Mapping[str, int]
    about: Mapping[str, str]
    patterns: Mapping[str, IndexPattern]


@cache
def index_constants() -> IndexConstants:
    content = json.loads(resources.files("longspan.published").joinpath(FILE).read_text(encoding="utf-8"))
    names = content["versions"]
    patterns = {
        pattern: IndexPattern(
            pattern=pattern,
            **{key: found[key] for key in ("code", "table", "constants")},
            measures=tuple(
                Measure(
                    **{key: metric[key] for key in ("name", "title", "task", "metric", "higher_is_better", "unit")},
                    settings=tuple(metric["settings"]),
                    scales={name: Scale(*metric[name]) for name in names},
                    printed=tuple(metric["printed"]) if "printed" in metric else None,
                    released=Scale(*metric["released"]) if "released" in metric else None,
                )
                for metric in found["columns"]
            ),
        )
        for pattern, found in content["patterns"].items()
    }
    given = {key: content[key] for key in ("paper", "source", "note", "tasks", "versions", "about")}
    return IndexConstants(**given, pool=tuple(content["pool"]), patterns=patterns)
