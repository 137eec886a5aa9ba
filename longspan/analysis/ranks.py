"""Which mechanisms rank apart over all tasks? Friedman's test, and Nemenyi's critical difference of mean ranks.

A task is one observation, whatever its unit: mechanisms are ranked on each, 1 for the best, and ties share the mean
rank. Friedman's p comes from random rankings, since its usual approximation is poor for a handful of tasks.
Two mechanisms rank apart where their mean ranks differ by more than

    CD = q sqrt(k (k + 1) / 6 N)        k mechanisms, N tasks, q the 95 % point of the range of k normal variables / √2

and only if Friedman's test finds any difference at all (Demšar 2006, Journal of Machine Learning Research 7).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from longspan.analysis.cards import Evidence
from longspan.analysis.finding import Column, Finding
from longspan.analysis.score_tables import ScoreTable, own_tables, published_tables

LEVEL = 0.05
DRAWS = 10_000
MIN_MECHANISMS, MIN_TASKS = 3, 2
COLUMNS = (
    Column("From"),
    Column("Mechanism"),
    Column("Mean rank", "number", "over the tasks, 1 is the best"),
    Column("Ranks", "text", "on each task"),
    Column("Ranks below", "text", "mechanisms that are better by more than the critical difference"),
)


@dataclass(frozen=True)
class Ranking:
    """Mechanisms by their mean rank. `alike` lists ranges of places that do not rank apart, as first and last."""

    origin: str
    tasks: tuple[str, ...]
    titles: tuple[str, ...]
    ranks: tuple[tuple[float, ...], ...]  # [mechanisms][tasks]
    p: float
    critical_difference: float
    left_out: tuple[str, ...] = ()  # tasks and mechanisms that would leave gaps

    @property
    def means(self) -> list[float]:
        return [sum(own) / len(own) for own in self.ranks]

    @property
    def differs(self) -> bool:
        return self.p < LEVEL

    def apart(self, one: int, other: int) -> bool:
        return self.differs and abs(self.means[one] - self.means[other]) > self.critical_difference

    @property
    def alike(self) -> list[tuple[int, int]]:
        count = len(self.titles)
        ends = [max(j for j in range(i, count) if not self.apart(i, j)) for i in range(count)]
        return [(i, j) for i, j in enumerate(ends) if j > i and (i == 0 or ends[i - 1] < j)]


def answer(evidence: Evidence) -> Finding:
    tables = [*own_tables(evidence.runs), *published_tables()]
    rankings = [found for table in tables if (found := ranking(table))]
    rows = [
        (one.origin, title, one.means[place], _ranks(one, place), _above(one, place))
        for one in rankings
        for place, title in enumerate(one.titles)
    ]
    notes = [_verdict(one) for one in rankings]
    notes.append("Tasks count as independent; those that share a data set or a backbone are less than that.")
    return Finding(
        "ranks",
        "Critical differences",
        "Mean ranks over tasks; a bar joins what does not rank apart.",
        COLUMNS,
        tuple(rows),
        tuple(notes),
        tuple(rankings),
    )


def ranking(table: ScoreTable) -> Ranking | None:
    """The ranks of all mechanisms that have a score on every task of the largest table without gaps, if there is one.

    Tasks are added in order of how many mechanisms have them; the table with the most cells is used.
    """
    count = {task: sum(task in own for own in table.scores.values()) for task in table.tasks}
    order = sorted(table.tasks, key=lambda task: -count[task])
    blocks = []
    for size in range(MIN_TASKS, len(order) + 1):
        tasks = [task for task in table.tasks if task in order[:size]]
        names = [name for name, own in table.scores.items() if all(task in own for task in tasks)]
        if len(names) >= MIN_MECHANISMS:
            blocks.append((len(names) * size, size, tasks, names))
    if not blocks:
        return None
    _, _, tasks, names = max(blocks)
    ranks = np.stack([rank([table.scores[name][task] for name in names]) for task in tasks])
    order = sorted(range(len(names)), key=lambda place: (ranks[:, place].sum(), table.titles[names[place]]))
    left = [table.tasks[task] for task in table.tasks if task not in tasks]
    left += [table.titles[name] for name in table.scores if name not in names]
    return Ranking(
        table.origin,
        tuple(table.tasks[task] for task in tasks),
        tuple(table.titles[names[place]] for place in order),
        tuple(tuple(map(float, ranks[:, place])) for place in order),
        friedman(ranks),
        nemenyi(len(names)) * math.sqrt(len(names) * (len(names) + 1) / (6 * len(tasks))),
        tuple(left),
    )


def rank(scores: Sequence[float]) -> np.ndarray:
    """Places by score, 1 for the highest; equal scores share the mean of theirs.

    >>> rank([0.3, 0.9, 0.3]).tolist()
    [2.5, 1.0, 2.5]
    """
    values = np.asarray(scores, dtype=float)
    above, alike = (values > values[:, None]).sum(axis=1), (values == values[:, None]).sum(axis=1)
    return above + (alike + 1) / 2


def friedman(ranks: np.ndarray, draws: int = DRAWS) -> float:
    """The share of random rankings that agree as well as these, [tasks, mechanisms]; deterministic."""
    middle = (ranks.shape[1] + 1) / 2

    def agreement(mean: np.ndarray) -> np.ndarray:
        return ((mean - middle) ** 2).sum(axis=-1)

    drawn = np.random.default_rng(0).permuted(np.broadcast_to(ranks, (draws, *ranks.shape)), axis=2)
    found = int((agreement(drawn.mean(axis=1)) >= agreement(ranks.mean(axis=0)) - 1e-9).sum())
    return (1 + found) / (1 + draws)


@cache
def nemenyi(mechanisms: int, level: float = LEVEL) -> float:
    """q: the range of so many standard normal variables is larger than q √2 with probability `level`.

    >>> [round(nemenyi(count), 3) for count in (2, 3, 10)]
    [1.96, 2.344, 3.164]
    """
    z = np.linspace(-9.0, 9.0, 3601)
    below = _normal(z)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    low, high = 0.0, 20.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        inside = mechanisms * density * (below - _normal(z - middle)) ** (mechanisms - 1)
        low, high = (middle, high) if np.trapezoid(inside, z) < 1 - level else (low, middle)
    return (low + high) / 2 / math.sqrt(2)


def _normal(z: np.ndarray) -> np.ndarray:
    """The share of a standard normal variable below each value."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z])


def _ranks(one: Ranking, place: int) -> str:
    return ", ".join(f"{task} {own:g}" for task, own in zip(one.tasks, one.ranks[place], strict=True))


def _above(one: Ranking, place: int) -> str:
    better = [one.titles[other] for other in range(place) if one.apart(other, place)]
    return ", ".join(better) or "–"


def _verdict(one: Ranking) -> str:
    count = len(one.titles)
    left = f" (left out for gaps: {', '.join(one.left_out)})" if one.left_out else ""
    sizes = f"{one.origin}: {count} mechanisms, {len(one.tasks)} tasks{left}, Friedman's p = {one.p:.2g}"
    if math.factorial(count) ** (1 - len(one.tasks)) > LEVEL:
        return f"{sizes}; so few could not rank apart however they agreed."
    if not one.differs:
        return f"{sizes}, so that nothing ranks apart."
    pairs = sum(one.apart(i, j) for i in range(count) for j in range(i))
    return f"{sizes}, critical difference {one.critical_difference:.2f}; {pairs} pairs rank apart."
