"""Suites: frozen, versioned lists of tasks, with what is scored and how it is averaged. Plain data.

A suite that has been published is never edited so that an average moves; it gets a new version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from longspan.core.errors import UnknownName, did_you_mean


@dataclass(frozen=True)
class Average:
    """An unweighted mean over `tasks`. `fail_as` says what FAIL counts for, where it counts at all."""

    name: str
    title: str
    tasks: tuple[str, ...]
    fail_as: dict[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class BestOf:
    """Under these protocols the column of `task` shows the best of several tasks, as a paper reports it."""

    task: str
    of: tuple[str, ...]
    protocols: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Scoring:
    """What a column shows. `unit` says how: fractions in percent, or plain numbers such as perplexities."""

    metric: str = "accuracy"
    higher_is_better: bool = True
    unit: Literal["percent", "plain"] = "percent"


@dataclass(frozen=True)
class Suite:
    """Tasks that are ranked together. The first average is the one that ranks.

    Tasks are scored by `metric`, but for those in `scored`, which are in no average. On a task in `fail_at_chance` a
    score that is not above chance is shown as FAIL instead of a number. Where tasks have slots of different patterns,
    `patterns` names that of each, and a row is a mechanism in all of them. A task in `standins` may be run on stand-in
    data beside real data of the others.
    """

    name: str
    version: int
    title: str
    tasks: tuple[str, ...]
    averages: tuple[Average, ...]
    metric: str = "accuracy"
    higher_is_better: bool = True
    unit: Literal["percent", "plain"] = "percent"
    fail_at_chance: tuple[str, ...] = ()
    best_of: tuple[BestOf, ...] = ()
    paper: str = ""
    scored: Mapping[str, Scoring] = field(default_factory=dict)
    patterns: Mapping[str, str] = field(default_factory=dict)
    standins: tuple[str, ...] = ()

    def scoring(self, task: str) -> Scoring:
        """How a task is scored.

        >>> get("starter").scoring("lm").metric
        'perplexity'
        """
        return self.scored.get(task) or Scoring(self.metric, self.higher_is_better, self.unit)

    def sources(self, protocol: str) -> dict[str, tuple[str, ...]]:
        """The tasks behind each column: one, or those of which it shows the best.

        >>> get("lra").sources("lra-paper")["text"]
        ('text_1k', 'text_2k', 'text_3k', 'text_4k')
        """
        best = {one.task: one.of for one in self.best_of if protocol in one.protocols}
        return {task: best.get(task, (task,)) for task in self.tasks}

    def tasks_under(self, protocol: str) -> tuple[str, ...]:
        """All that has to be run for a board."""
        return tuple(task for tasks in self.sources(protocol).values() for task in tasks)


_LRA_FIVE = ("listops", "text", "retrieval", "image", "pathfinder")
HEADINGS = {  # as the papers head their columns
    "listops": "ListOps",
    "text": "Text",
    "retrieval": "Retrieval",
    "image": "Image",
    "pathfinder": "Pathfinder",
    "pathx": "Path-X",
}

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite(
            name="lra",
            version=2,
            title="Long Range Arena",
            paper="arXiv:2011.04006",
            tasks=(*_LRA_FIVE, "pathx"),
            averages=(
                Average("avg5", "Avg 5", _LRA_FIVE, note="five tasks, Path-X left out, as in the paper"),
                Average(
                    "avg6",
                    "Avg 6",
                    (*_LRA_FIVE, "pathx"),
                    fail_as={"pathx": 0.5},
                    note="six tasks with FAIL on Path-X counted as 50, as in later literature",
                ),
            ),
            fail_at_chance=("pathx",),
            best_of=(
                BestOf(
                    "text",
                    ("text_1k", "text_2k", "text_3k", "text_4k"),
                    ("lra-paper", "lra-released"),
                    note="the best of four lengths for each mechanism, chosen by the score shown, as in the paper",
                ),
            ),
        ),
        Suite(
            name="starter",
            version=2,
            title="Starter",
            tasks=("listops", "recall", "lm"),
            averages=(Average("avg", "Avg", ("listops", "recall"), note="ListOps and recall"),),
            scored={"lm": Scoring("perplexity", higher_is_better=False, unit="plain")},
            patterns={"listops": "noncausal_self", "recall": "causal_self", "lm": "causal_self"},
            standins=("lm",),
        ),
        Suite(
            name="lra-generated",
            version=1,
            title="Long Range Arena, generated tasks",
            paper="arXiv:2011.04006",
            tasks=("listops", "pathfinder"),
            averages=(Average("avg", "Avg", ("listops", "pathfinder"), note="both tasks"),),
        ),
    )
}


def names() -> list[str]:
    return list(SUITES)


def get(name: str) -> Suite:
    """The suite of that name.

    >>> get("starter").tasks
    ('listops', 'recall', 'lm')
    """
    if name not in SUITES:
        raise UnknownName(f"No suite named {name!r}.{did_you_mean(name, SUITES)}")
    return SUITES[name]


def heading(task: str) -> str:
    """How a board heads the column of a task: as the papers do, else by its name.

    >>> heading("pathx"), heading("text_1k")
    ('Path-X', 'text_1k')
    """
    return HEADINGS.get(task, task)


def variant(task: str) -> str:
    """What tells a task from its siblings.

    >>> variant("text_4k")
    '4K'
    """
    return task.rpartition("_")[2].upper()


def of_tasks(
    tasks: Sequence[str],
    metric: str = "accuracy",
    higher_is_better: bool = True,
    unit: Literal["percent", "plain"] = "percent",
) -> Suite:
    """An unnamed suite of the given tasks, all scored alike, for a board that no suite describes."""
    tasks = tuple(tasks)
    average = Average("avg", "Avg", tasks, note="all tasks shown")
    return Suite(
        name="+".join(tasks),
        version=1,
        title=", ".join(tasks),
        tasks=tasks,
        averages=(average,) if len(tasks) > 1 else (),
        metric=metric,
        higher_is_better=higher_is_better,
        unit=unit,
    )
