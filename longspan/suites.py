"""Suites: frozen, versioned lists of tasks, with what is scored and how it is averaged. Plain data.

A suite that has been published is never edited so that an average moves; it gets a new version.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from longspan.core.errors import UnknownName, UsageError, did_you_mean
from longspan.published.index_constants import Measure, Unit, index_constants


@dataclass(frozen=True)
class Average:
    """An unweighted mean over the columns `tasks`. `fail_as` says what FAIL counts for, where it counts at all.

    With `constants` it is an index: the mean z-score of each task's metrics, averaged over the tasks.
    """

    name: str
    title: str
    tasks: tuple[str, ...]
    fail_as: dict[str, float] = field(default_factory=dict)
    note: str = ""
    constants: str = ""


@dataclass(frozen=True)
class BestOf:
    """Under these protocols the column of `task` shows the best of several tasks, or another one in its place."""

    task: str
    of: tuple[str, ...]
    protocols: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Scoring:
    """What a column shows. `unit` says how: fractions in percent, or plain numbers such as perplexities."""

    metric: str = "accuracy"
    higher_is_better: bool = True
    unit: Unit = "percent"


@dataclass(frozen=True)
class Suite:
    """Tasks that are ranked together. The first average is the one that ranks.

    Tasks are scored by `metric`, except those in `scored`, which are in no average; `unit` says how scores are shown:
    fractions in percent, or plain numbers such as perplexities. On a task in `fail_at_chance` a score that is not above
    chance is shown as FAIL instead of a number. `published` is the suite whose published tables it shows, if not its
    own. Where tasks have slots of different patterns, `slots` names the pattern of each, and a row is one mechanism in
    all of them. A task in `standins` may be run on stand-in data while the others use real data. A suite has a column
    for each task, or one for each of its `measures`; one that has `patterns` is a suite for each of them.
    """

    name: str
    version: int
    title: str
    tasks: tuple[str, ...]
    averages: tuple[Average, ...]
    metric: str = "accuracy"
    higher_is_better: bool = True
    unit: Unit = "percent"
    fail_at_chance: tuple[str, ...] = ()
    best_of: tuple[BestOf, ...] = ()
    paper: str = ""
    published: str = ""
    measures: tuple[Measure, ...] = ()
    patterns: Mapping[str, "Suite"] = field(default_factory=dict)
    scored: Mapping[str, Scoring] = field(default_factory=dict)
    slots: Mapping[str, str] = field(default_factory=dict)
    standins: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(measure.name for measure in self.measures) or self.tasks

    def measure(self, column: str) -> Measure:
        """What a column shows.

        >>> get("lra").measure("text").metric, get("cab").under("causal_self").measure("lm_perplexity").higher_is_better
        ('accuracy', False)
        >>> get("starter").measure("lm").metric
        'perplexity'
        """
        own = {measure.name: measure for measure in self.measures}
        one = self.scored.get(column) or Scoring(self.metric, self.higher_is_better, self.unit)
        alike = Measure(column, heading(column), (column,), one.metric, one.higher_is_better, one.unit, column)
        return own.get(column, alike)

    def weights(self, average: Average) -> dict[str, float]:
        """How much each column counts in an average: all columns alike, or in an index all tasks alike."""
        task = {column: self.measure(column).task if average.constants else column for column in average.tasks}
        size = Counter(task.values())
        return {column: 1 / (len(size) * size[own]) for column, own in task.items()}

    def mean(self, average: Average, scores: Mapping[str, float]) -> float:
        """An average of a row that has a score in every column."""
        if not average.constants:
            return statistics.fmean(scores[column] for column in average.tasks)
        z = {column: self.measure(column).z(scores[column], average.constants) for column in average.tasks}
        return sum(weight * z[column] for column, weight in self.weights(average).items())

    def under(self, pattern: str | None) -> "Suite":
        """The suite of a pattern.

        >>> get("cab").under("causal_self").tasks
        ('tts_transformer', 'summarization', 'lm')
        """
        if self.patterns and pattern not in self.patterns:
            raise UsageError(f"{self.name} was asked for {pattern}, but ranks one of {', '.join(self.patterns)}.")
        return self.patterns.get(pattern or "", self)

    def places(self, protocol: str, pattern: str | None = None) -> list[tuple[str, str | None]]:
        """Everything that has to be run: each task with the pattern to fill, where None is the task's first.

        >>> get("cab").places("cab-2023", "causal_cross")
        [('tts_transformer', 'causal_cross'), ('summarization', 'causal_cross')]
        """
        if pattern is None and self.patterns:
            return [place for one in self.patterns for place in self.places(protocol, one)]
        own = self if pattern is None else self.under(pattern)
        if pattern is None and self.slots:
            return [(task, self.slots.get(task)) for task in dict.fromkeys(own.tasks_under(protocol))]
        return [(task, pattern) for task in dict.fromkeys(own.tasks_under(protocol))]

    def sources(self, protocol: str) -> dict[str, tuple[str, ...]]:
        """The tasks behind each column: a single one, those it shows the best of, or those it averages.

        >>> get("lra").sources("lra-paper")["text"]
        ('text_1k', 'text_2k', 'text_3k', 'text_4k')
        """
        if self.measures:
            return {measure.name: measure.settings for measure in self.measures}
        best = {one.task: one.of for one in self.best_of if protocol in one.protocols}
        return {task: best.get(task, (task,)) for task in self.tasks}

    @property
    def every_task(self) -> frozenset[str]:
        """Every task whose cards can appear on one of its boards, whatever the protocol and pattern.

        >>> sorted(get("lra4").every_task)
        ['image', 'listops', 'pathfinder', 'text', 'text_1k', 'text_2k', 'text_3k', 'text_4k']
        """
        behind = [*(one.of for one in self.best_of), *(measure.settings for measure in self.measures)]
        own = {task for tasks in (self.tasks, *behind) for task in tasks}
        return frozenset(own).union(*(suite.every_task for suite in self.patterns.values()))

    def tasks_under(self, protocol: str) -> tuple[str, ...]:
        """The tasks that have to be run for a board."""
        return tuple(dict.fromkeys(task for tasks in self.sources(protocol).values() for task in tasks))


def _cab() -> Suite:
    """A suite for each pattern, from the constants that were published."""
    found, known = {}, index_constants()
    for pattern in known.patterns.values():
        names = tuple(measure.name for measure in pattern.measures)
        found[pattern.pattern] = Suite(
            name="cab",
            version=1,
            title=f"CAB, {pattern.pattern.replace('_', ' ')}",
            paper=known.paper,
            tasks=tuple(dict.fromkeys(task for measure in pattern.measures for task in measure.settings)),
            measures=pattern.measures,
            averages=(
                Average("ci", "CI", names, note=known.about["cab-2023"], constants="cab-2023"),
                Average("ci_longspan", "CI longspan", names, note=known.about["longspan"], constants="longspan"),
            ),
            metric="",
            unit="plain",
        )
    tasks = dict.fromkeys(task for suite in found.values() for task in suite.tasks)
    title = "Comprehensive Attention Benchmark"
    return Suite("cab", 1, title, tuple(tasks), averages=(), metric="", paper=known.paper, patterns=found)


_LRA_FIVE = ("listops", "text", "retrieval", "image", "pathfinder")
_LRA_FOUR = ("listops", "text", "image", "pathfinder")
_BEST_TEXT = BestOf(
    "text",
    ("text_1k", "text_2k", "text_3k", "text_4k"),
    ("lra-paper", "lra-released"),
    note="the best of four lengths for each mechanism, chosen by the score shown, as in the paper",
)
HEADINGS = {  # as the papers head their columns, and short titles of the tasks that no paper's table has
    "listops": "ListOps",
    "text": "Text",
    "retrieval": "Retrieval",
    "image": "Image",
    "pathfinder": "Pathfinder",
    "pathfinder_cls": "Pathfinder, class token",
    "pathx": "Path-X",
    "recall": "Recall",
    "noncausal_recall": "Noncausal recall",
    "copying": "Copying",
    "selective_copying": "Selective copying",
    "needle": "Needle",
    "lm": "LM",
    "mlm": "MLM",
    "summarization": "Summarization",
    "super_resolution": "Super-resolution",
    "point_cloud_completion": "Point clouds",
    "tts_fastspeech2": "FastSpeech 2",
    "tts_transformer": "Transformer TTS",
    "retrieval_30k": "Retrieval 30K",
    **{f"text_{n}k": f"Text {n}K" for n in range(1, 5)},
    **{
        f"forecasting_{name.lower()}{way}": f"{name}{', univariate' if way else ''}"
        for name in ("ETTh1", "ETTh2", "ETTm1", "ECL", "Weather")
        for way in ("", "_univariate")
    },
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
            best_of=(_BEST_TEXT,),
        ),
        Suite(
            name="lra4",
            version=1,
            title="Long Range Arena, four tasks",
            paper="arXiv:2011.04006",
            tasks=_LRA_FOUR,
            averages=(Average("avg4", "Avg 4", _LRA_FOUR, note="four tasks, Retrieval and Path-X left out"),),
            best_of=(
                _BEST_TEXT,
                BestOf("text", ("text_1k",), ("longspan",), note="reviews cut after 1,000 bytes (text_1k)"),
            ),
            published="lra",
        ),
        Suite(
            name="starter",
            version=2,
            title="Starter",
            tasks=("listops", "recall", "lm"),
            averages=(Average("avg", "Avg", ("listops", "recall"), note="ListOps and recall"),),
            scored={"lm": Scoring("perplexity", higher_is_better=False, unit="plain")},
            slots={"listops": "noncausal_self", "recall": "causal_self", "lm": "causal_self"},
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
        _cab(),
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

    >>> heading("pathx"), heading("text_1k"), heading("mine.py:Mine")
    ('Path-X', 'Text 1K', 'mine.py:Mine')
    """
    return HEADINGS.get(task, task)


def variant(task: str) -> str:
    """What tells a task from its siblings.

    >>> variant("text_4k")
    '4K'
    """
    return task.rpartition("_")[2].upper()


def usual_score(task: str) -> tuple[str, bool, Unit]:
    """Metric, whether higher is better, and unit of a task without cards, taken from a suite that has it.

    >>> usual_score("lm"), usual_score("listops")
    (('perplexity', False, 'plain'), ('accuracy', True, 'percent'))
    """
    measures = (m for suite in SUITES.values() for own in suite.patterns.values() for m in own.measures)
    found = next((measure for measure in measures if task in measure.settings), None)
    return (found.metric, found.higher_is_better, found.unit) if found else ("accuracy", True, "percent")


def of_tasks(
    tasks: Sequence[str],
    metric: str = "accuracy",
    higher_is_better: bool = True,
    unit: Unit = "percent",
) -> Suite:
    """An unnamed suite of the given tasks, all scored alike, for a board that no suite describes."""
    tasks = tuple(tasks)
    average = Average("avg", "Avg", tasks, note="all tasks shown")
    return Suite(
        name="+".join(tasks),
        version=1,
        title=", ".join(map(heading, tasks)),
        tasks=tasks,
        averages=(average,) if len(tasks) > 1 else (),
        metric=metric,
        higher_is_better=higher_is_better,
        unit=unit,
    )
