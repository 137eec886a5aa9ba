"""Figures of what only the two papers ask: the benefit of attention, cheap tasks, Text at four lengths, references."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from longspan.analysis.benefit import Benefit
from longspan.analysis.predicts import Prediction
from longspan.analysis.references import PUBLISHED, ImageScore
from longspan.analysis.text_lengths import TASKS as TEXT_TASKS
from longspan.analysis.text_lengths import TextLengths
from longspan.core.printable import shown
from longspan.report.efficiency_figures import row_points
from longspan.report.look import Look
from longspan.report.marks import Axis, FigureView, LineMark, Mark, ReferenceMark
from longspan.suites import variant

BENEFIT = (("--hue-2", "diamond", 12), ("--hue-1", "square", 12), ("--ink", "circle", 6))  # none covers another


def _benefit(found: Sequence[Benefit], look: Mapping[str, Look]) -> list[FigureView]:
    """The three scores of a task in its row; indices of one origin share a view."""
    views = []
    for label, own in grouped(found, lambda one: f"{one.origin} · {one.scored_by}"):
        means = {
            "without attention": [one.without and one.without.mean for one in own],
            "best efficient": [one.best and one.best.mean for one in own],
            "softmax": [one.softmax.mean for one in own],
        }
        marks: list[Mark] = []
        for (name, values), look_of in zip(means.items(), BENEFIT, strict=True):
            marks += row_points(name, values, *look_of)
        rows = [f"{one.task} · {one.pattern}" for one in own]
        better = "higher" if own[0].higher_is_better else "lower"
        views.append(FigureView(label, marks, Axis(f"{own[0].scored_by} ({better} is better)"), Axis(rows=rows)))
    return views


def _predicts(found: Sequence[Prediction], look: Mapping[str, Look]) -> list[FigureView]:
    """r of each pair with the interval of the pair and the wider one of all pairs."""
    views = []
    for origin, own in grouped([one for one in found if one.pair.interval], lambda one: one.origin):
        marks: list[Mark] = []
        for name, width, ends in (
            ("95 %, all pairs at once", 2.0, [one.simultaneous or (-1.0, 1.0) for one in own]),
            ("95 %, this pair alone", 5.0, [one.pair.interval or (-1.0, 1.0) for one in own]),
        ):
            x = [value for low, high in ends for value in (low, high, None)]
            y = [value for row in range(len(own)) for value in (row, row, None)]
            marks.append(LineMark(x=x, y=y, width=width, name=name))
        marks += row_points("r", [one.pair.r for one in own], "--hue-1")
        marks.append(ReferenceMark("x", 0.0, "none"))
        rows = [f"{one.cheap.title} for {one.expensive.title}" for one in own]
        views.append(FigureView(origin, marks, Axis("Pearson's r"), Axis(rows=rows)))
    return views


def _text_lengths(found: Sequence[TextLengths], look: Mapping[str, Look]) -> list[FigureView]:
    """A line for each mechanism over the four lengths, one view for each set of rules."""
    views = []
    for label, own in grouped(found, lambda one: one.origin):
        marks = [
            LineMark(
                x=[float(place) for place, task in enumerate(TEXT_TASKS) if task in one.test],
                y=[100 * one.test[task] for task in TEXT_TASKS if task in one.test],
                size=8,
                name=one.title,
                group=one.mechanism,
                hover=[f"{100 * one.test[task]:.2f} %" for task in TEXT_TASKS if task in one.test],
                **look[shown(one.mechanism)].line,
            )
            for one in own
        ]
        ticks = {float(place): variant(task) for place, task in enumerate(TEXT_TASKS)}
        views.append(FigureView(label, marks, Axis("bytes of a review", ticks=ticks), Axis("test accuracy, %")))
    return views


def _references(found: Sequence[ImageScore], look: Mapping[str, Look]) -> list[FigureView]:
    """All networks in one picture, by accuracy; an interval where there is one."""
    own = sorted(found, key=lambda one: -one.accuracy)
    marks: list[Mark] = []
    if ends := [(row, one.interval) for row, one in enumerate(own) if one.interval]:
        x = [100 * value if value is not None else None for _, (low, high) in ends for value in (low, high, None)]
        y = [value for row, _ in ends for value in (row, row, None)]
        marks.append(LineMark(x=x, y=y, width=4, name="95 %"))
    for name, colour, symbol, by_rules, printed in (
        ("outside the rules, published", "--ink", "square", False, True),
        ("by the rules, published", "--hue-2", "diamond", True, True),
        ("by the rules, own", "--hue-1", "circle", True, False),
        ("other settings, own", "--hue-3", "triangle-up", False, False),
    ):
        kind = [(one.by_rules, one.origin == PUBLISHED) == (by_rules, printed) for one in own]
        values = [100 * one.accuracy if is_so else None for one, is_so in zip(own, kind, strict=True)]
        marks += row_points(name, values, colour, symbol)
    rows = [one.title if one.origin == PUBLISHED else f"{one.title} · {one.origin}" for one in own]
    return [FigureView("Image", marks, Axis("test accuracy, %", from_zero=True), Axis(rows=rows))]


VIEWS: dict[str, Callable[[Any, Mapping[str, Look]], list[FigureView]]] = {
    "benefit": _benefit,
    "predicts": _predicts,
    "text_lengths": _text_lengths,
    "references": _references,
}


def grouped(items: Sequence[Any], key: Callable[[Any], str]) -> list[tuple[str, list[Any]]]:
    """Items by their key, in the order in which the keys first appear."""
    return [(name, [one for one in items if key(one) == name]) for name in dict.fromkeys(map(key, items))]
