"""The three pictures of the first page: who is good, at what cost, from which length on it pays."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from longspan.analysis.crossover import Comparison
from longspan.analysis.finding import Finding
from longspan.core.printable import shown
from longspan.report import figure_json
from longspan.report.board_figures import metric_name
from longspan.report.efficiency_figures import drawn_at
from longspan.report.groups import BoardGroup, once
from longspan.report.look import BASELINE, Look, base_name, family_of
from longspan.report.marks import Axis, Figure, FigureView, LineMark, Mark, PointsMark, ReferenceMark
from longspan.report.question_figures import describe
from longspan.report.run_figures import row_name, rows_of
from longspan.report.ticks import length_text, length_ticks
from longspan.results import render
from longspan.results.board_types import Row

LANE = 0.35  # of a row, between points that would cover one another
NEAR = 0.022  # of the width of the figure


@dataclass(frozen=True)
class Picture:
    """A question, the sentence that answers it, and the figure that shows it; `page` has the details."""

    name: str
    question: str
    answer: str
    figure: Figure
    page: str
    link: str

    @property
    def drawn(self) -> dict[str, Any]:
        return figure_json.render(self.figure, family_of)

    @property
    def numbers(self) -> list[tuple[str, list[tuple[str, str, str]]]]:
        """What the figure shows, in words: by view the row, the mechanism and the words for each point."""
        return [(shown(view.title), sorted(_words_of(view))) for view in self.figure.views]


def _words_of(view: FigureView) -> Iterator[tuple[str, str, str]]:
    rows = view.y.rows or ()
    for mark in view.marks:
        if isinstance(mark, PointsMark) and mark.name:
            for y, words in zip(mark.y, mark.hover or (), strict=False):
                row = rows[round(y)] if rows and y is not None else ""
                yield ("" if row == mark.name else row), mark.name, words


def pictures(
    groups: Sequence[BoardGroup], findings: Sequence[Finding], look: Mapping[str, Look], titles: Mapping[str, str]
) -> list[Picture]:
    """The pictures that there are numbers for."""
    found = {finding.question: finding for finding in findings}
    made = [who_is_good(groups, look, titles), at_what_cost(found.get("front"), look, titles)]
    made.append(from_which_length(found.get("crossover"), look))
    return [picture for picture in made if picture]


# ---------------------------------------------------------------------------------------------------------- who is good


@dataclass(frozen=True)
class Standing:
    """A mechanism on a task against softmax there, see `gain_of`."""

    row: Row
    gain: float
    words: str


def who_is_good(groups: Sequence[BoardGroup], look: Mapping[str, Look], titles: Mapping[str, str]) -> Picture | None:
    """Every task but those on stand-ins on which softmax ran: how much better or worse the others are."""
    lines: dict[str, list[Standing]] = {}
    for group in once(groups):
        for task in group.board.suite.tasks:
            rules = ", ".join(filter(None, (shown(group.tier), group.data_in_words)))
            name = f"{shown(titles.get(task, task))} ({rules})"
            if not group.standin and name not in lines and (own := standings(group, task)):
                lines[name] = own
    if not lines:
        return None
    span = max(abs(one.gain) for own in lines.values() for one in own) or 1.0
    marks: list[Mark] = [ReferenceMark("x", 0.0, "softmax")]
    by_mechanism: dict[str, list[tuple[float, float, str]]] = {}
    names: dict[str, str] = {}
    heights = []
    for place, own in enumerate(lines.values()):
        steps = lanes([one.gain for one in own], 2 * span * NEAR)
        heights.append(max(1.0, LANE * (2 * max(map(abs, steps)) + 1)))
        for one, lane in zip(own, steps, strict=True):
            spot = one.gain, place + LANE * lane / heights[-1], one.words
            by_mechanism.setdefault(one.row.mechanism, []).append(spot)
            names[one.row.mechanism] = row_name(one.row)
    for mechanism, spots in by_mechanism.items():
        x, y, hover = zip(*spots, strict=True)
        own = {"name": names[mechanism], "group": mechanism, "hover": hover, **look[mechanism].point}
        marks.append(PointsMark(x=x, y=y, size=11, outline=True, **own))
    axis = Axis("percent better (right) or worse (left) than softmax, in the score of the task")
    figure = Figure([FigureView("", marks, axis, Axis(rows=list(lines), heights=heights))])
    return Picture("good", "Who is good?", _good_words(lines), figure, "board.html", "All boards")


def standings(group: BoardGroup, task: str) -> list[Standing]:
    """The rows of a task from the best to the worst; none if softmax or every other mechanism is missing."""
    rows = rows_of(group, task)
    softmax = next((row.cells[task].value for row in rows if row.mechanism == BASELINE), None)
    if not softmax or len(rows) < 2:
        return []
    measure, made = group.board.suite.measure(task), []
    for row in rows:
        cell = row.cells[task]
        gain = gain_of(cell.value or 0.0, softmax, measure.higher_is_better)
        seeds = f"{cell.seeds} seed{'' if cell.seeds == 1 else 's'}"
        score = f"{render.score_text(group.board, cell.value or 0.0, task)} {metric_name(measure.metric)}"
        words = f"{score}, {gain:+.1f} % on softmax, {seeds}"
        made.append(Standing(row, gain, shown(words)))
    return made


def gain_of(value: float, softmax: float, higher_is_better: bool) -> float:
    """How much better than softmax, in percent: the ratio of the two scores, inverted where lower is better, so that
    twice softmax's error is half as good, and none is worse than -100 %.

    >>> gain_of(0.6, 0.5, True), gain_of(4.0, 2.0, False)
    (20.0, -50.0)
    """
    over, under = (value, softmax) if higher_is_better else (softmax, value)
    return round(100.0 * (over / under - 1.0), 6) if under else 0.0


def lanes(values: Sequence[float], near: float) -> list[int]:
    """Steps up or down for points of a row, so that neighbours do not overlap; the point nearest to 0 has none.

    >>> lanes([1.0, 1.1, 5.0], 0.5)
    [0, 1, 0]
    """
    found: dict[int, int] = {}
    for place in sorted(range(len(values)), key=lambda place: abs(values[place])):
        used = {lane for other, lane in found.items() if abs(values[other] - values[place]) < near}
        found[place] = next(lane for lane in _nearest_first() if lane not in used)
    return [found[place] for place in range(len(values))]


def _nearest_first() -> Iterator[int]:
    """0, 1, -1, 2, -2..."""
    yield 0
    for lane in itertools.count(1):
        yield from (lane, -lane)


def _good_words(lines: Mapping[str, Sequence[Standing]]) -> str:
    ahead = [own[0] for own in lines.values() if base_name(own[0].row.mechanism) != BASELINE]
    count = f"{len(lines)} task{'' if len(lines) == 1 else 's'}"
    if not ahead:
        return f"On {count} nothing scores higher than softmax. Hover a point to follow a mechanism from task to task."
    names = ", ".join(dict.fromkeys(shown(one.row.title) for one in ahead))
    where = f"On {len(ahead)} of {count}" if len(ahead) < len(lines) else f"On each of {count}"
    return f"{where} another scores higher than softmax: {names}. A single seed settles nothing; a point says how many."


# --------------------------------------------------------------------------------------------------------- at what cost


def at_what_cost(finding: Finding | None, look: Mapping[str, Look], titles: Mapping[str, str]) -> Picture | None:
    """Score against the time of a training step, the task with the most mechanisms first."""
    figures = describe(finding, look) if finding else []
    views = [replace(view, heading=_heading(view, titles)) for figure in figures for view in figure.views]
    if not views:
        return None
    views.sort(key=lambda view: -sum(isinstance(mark, PointsMark) for mark in view.marks))
    words = "The dotted line joins what no other mechanism beats in both score and cost."
    return Picture("cost", "At what cost?", words, Figure(views), "questions.html#front", "Pareto fronts")


def _heading(view: FigureView, titles: Mapping[str, str]) -> str:
    """The task by its title, with its rules and pattern; the machine is named where the front is explained."""
    task, *rules = view.heading.split(" · ")
    return shown(" · ".join([titles.get(task, task), *rules[:3]]).replace("_", " "))


# ----------------------------------------------------------------------------------------- from which length on it pays


def from_which_length(finding: Finding | None, look: Mapping[str, Look]) -> Picture | None:
    """The length from which on each is faster than today's softmax, a view for each pattern and mode."""
    found: Sequence[Comparison] = finding.figure or () if finding else ()
    drawn = [one for one in found if one.quantity == "time" and one.baseline == BASELINE]
    drawn = [one for one in drawn if one.crossing.status in ("crosses", "between", "below", "above")]
    kinds = dict.fromkeys((one.where, one.pattern, one.mode) for one in drawn)
    views = []
    for kind in kinds:
        own = sorted((one for one in drawn if (one.where, one.pattern, one.mode) == kind), key=_earliest)
        views.append((len(own), _paying(own, look)))
    if not views:
        return None
    views = [view for _, view in sorted(views, key=lambda pair: -pair[0])]
    return Picture(
        "pays",
        "From which length does it pay?",
        _paying_words([one for one in drawn if _label(one) == views[0].label]),
        Figure(views),
        "efficiency.html#crossover",
        "Efficiency lengths",
    )


def _earliest(one: Comparison) -> tuple[bool, float, str]:
    """Those that never pay in the measured lengths come last."""
    return one.crossing.status == "above", drawn_at(one), one.title


def _label(one: Comparison) -> str:
    mode = {"train": "training", "decode": "decoding"}.get(one.mode, one.mode)
    precision = next((part for part in one.where.split(" · ") if "float" in part), "")
    return ", ".join(filter(None, (f"{one.pattern.replace('_', ' ')}, {mode}", precision)))


def _paying(own: Sequence[Comparison], look: Mapping[str, Look]) -> FigureView:
    longest = max(float(one.lengths[-1]) for one in own)
    marks: list[Mark] = []
    for row, one in enumerate(own):
        style, at = look[shown(one.mechanism)], drawn_at(one)
        named: dict[str, Any] = {"name": one.title, "group": one.mechanism}
        if one.crossing.status != "above":
            marks.append(LineMark(x=[at, longest], y=[row, row], colour=style.colour, width=3.0, group=one.mechanism))
        symbol = {"above": "triangle-right", "below": "triangle-left"}.get(one.crossing.status, "circle")
        hover = [one.crossing.words]
        marks.append(PointsMark(x=[at], y=[row], colour=style.colour, symbol=symbol, size=12, hover=hover, **named))
    ticks = length_ticks(float(length) for one in own for length in one.lengths)
    words = "tokens; a line begins where it becomes faster than softmax (◂ at or below, ▸ above what was measured)"
    x = Axis(words, log=True, ticks=ticks)
    return FigureView(_label(own[0]), marks, x, Axis(rows=[one.title for one in own]))


def _paying_words(own: Sequence[Comparison]) -> str:
    paying = [one for one in own if one.crossing.status != "above"]
    if not paying:
        return "Within the measured lengths none is faster than softmax."
    lengths = sorted(drawn_at(one) for one in paying)
    middle = 2 ** round(math.log2(lengths[len(lengths) // 2]))
    return (
        f"{len(paying)} of {len(own)} become faster than softmax within the measured lengths, half of them by about "
        f"{length_text(middle)} tokens. Speed is not quality: most compute another function."
    )
