"""Figures of the efficiency questions: a view for each mode and quantity of one bench and pattern."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from longspan.analysis.crossover import Comparison
from longspan.analysis.efficiency_length import LengthPair
from longspan.analysis.growth import Curves, LengthCurve
from longspan.analysis.relative import RelativeCurves
from longspan.analysis.roofline import Roof
from longspan.analysis.scaling import Growth
from longspan.core.printable import shown
from longspan.report.look import Look
from longspan.report.marks import Axis, FigureView, LineMark, Mark, PointsMark, ReferenceMark, Values
from longspan.report.ticks import length_ticks, value_ticks

HEIGHT = 460  # pixels: these figures have a line for each mechanism
CROSSINGS = {  # status: name in the legend, colour, symbol
    "crosses": ("crosses", "--hue-1", "circle"),
    "between": ("between two lengths", "--hue-1", "diamond"),
    "below": ("below the shortest", "--hue-3", "triangle-left"),
    "above": ("above the longest, if at all", "--hue-2", "triangle-right"),
}


def _growth(found: Sequence[Curves], look: Mapping[str, Look]) -> list[FigureView]:
    """On paper each quantity once, in the first variant that has it."""
    views: list[FigureView] = []
    drawn = set()
    for one in found:
        quantity = one.label.partition(",")[0]
        name = ", ".join(filter(None, (quantity if one.mode == "decode" else f"{one.mode} {quantity}", one.variant)))
        lines = [length_line(line, look, [f"{x:,.0f} tokens: {y:,.4g}" for x, y in _pairs(line)]) for line in one.lines]
        x = Axis("tokens", log=True, ticks=length_ticks(x for line in one.lines for x in line.x))
        y = Axis(one.label, log=True, ticks=value_ticks(y for line in one.lines for y in line.y))
        medium = "site" if (one.mode, one.label) in drawn else "both"
        drawn.add((one.mode, one.label))
        views.append(FigureView(_capital(name), lines, x, y, height=HEIGHT, side=one.mode, medium=medium))
    return views


def _relative(found: Sequence[RelativeCurves], look: Mapping[str, Look]) -> list[FigureView]:
    """Costs relative to the baseline, which is a dotted line at 1."""
    views = []
    for one in found:
        lines: list[Mark] = [
            length_line(line, look, [f"{x:,.0f} tokens: {y:,.3g} times" for x, y in _pairs(line)]) for line in one.lines
        ]
        lines.append(ReferenceMark("y", 1.0, one.baseline))
        x = Axis("tokens", log=True, ticks=length_ticks(x for line in one.lines for x in line.x))
        label = f"{one.quantity} over that of {one.baseline}"
        y = Axis(label, log=True, ticks=value_ticks(y for line in one.lines for y in line.y))
        name = _capital(f"{one.mode} {one.quantity} against {one.baseline}, {one.variant}")
        views.append(FigureView(name, lines, x, y, height=HEIGHT, side=f"{one.mode} {one.baseline}"))
    return views


def _efficiency_length(found: Sequence[LengthPair], look: Mapping[str, Look]) -> list[FigureView]:
    """Both lengths of a mechanism in its row, with their intervals."""
    views = []
    for mode, baseline in dict.fromkeys((one.mode, one.baseline) for one in found):
        own = [one for one in found if (one.mode, one.baseline) == (mode, baseline)]
        own = [one for one in own if any(crossing.length for crossing in one.found.values())]
        lengths = [c.length for one in own for c in one.found.values() if c.length]
        ends = (min(lengths, default=1.0) / 1.5, 1.5 * max(lengths, default=1.0))  # where an interval is open
        marks: list[Mark] = []
        for kind, colour, symbol in (("time", "--hue-1", "circle"), ("memory", "--hue-2", "diamond")):
            crossings = [one.found.get(kind) for one in own]
            for row, crossing in enumerate(crossings):
                if crossing and crossing.length and crossing.interval:
                    low, high = crossing.interval
                    marks.append(LineMark(x=[low or ends[0], high or ends[1]], y=[row, row], width=4))
            found_at = [crossing and crossing.length for crossing in crossings]
            marks += row_points(kind, found_at, colour, symbol, unit="tokens")
        if marks:
            label = _capital(f"{mode} against {baseline}, by CAB's fits")
            x = Axis("efficiency length, tokens", log=True, ticks=value_ticks(lengths))
            views.append(FigureView(label, marks, x, Axis(rows=[one.title for one in own])))
    return views


def _roofline(roofs: Sequence[Roof], look: Mapping[str, Look]) -> list[FigureView]:
    views = []
    for roof in roofs:
        lines = [
            length_line(line, look, [f"{n:,} tokens: {y:,.4g} TFLOP/s" for n, y in zip(lengths, line.y, strict=True)])
            for line, lengths in zip(roof.lines, roof.lengths, strict=True)
        ]
        marks = [*ceiling(roof), *lines]
        x = Axis("counted operations per byte that must move", True, value_ticks(x for mark in marks for x in mark.x))
        y = Axis("TFLOP/s reached", True, value_ticks(y for mark in marks for y in mark.y))
        views.append(FigureView(_capital(f"{roof.mode}, {roof.variant}"), marks, x, y, height=HEIGHT, side="modes"))
    return views


def ceiling(roof: Roof) -> list[LineMark]:
    """The roof: bandwidth to the left of the ridge, arithmetic to its right; empty if not measured."""
    if roof.bandwidth is None or roof.rate is None:
        return []
    ridge = roof.rate / roof.bandwidth
    found = [ridge, *(x for line in roof.lines for x in line.x)]
    x = (min(found) / 2, ridge, 2 * max(found))
    y = [min(value * roof.bandwidth, roof.rate) / 1e12 for value in x]
    name = f"roof: {roof.bandwidth / 1e9:,.0f} GB/s, {roof.rate / 1e12:,.0f} TFLOP/s"
    return [LineMark(x=x, y=y, width=2.5, name=name, group=name)]


def _crossover(found: Sequence[Comparison], look: Mapping[str, Look]) -> list[FigureView]:
    """On paper one quantity against one baseline, the first of each."""
    views = []
    drawn = [one for one in found if one.crossing.status in CROSSINGS]
    for kind in dict.fromkeys((one.mode, one.quantity, one.baseline) for one in drawn):
        own = [one for one in drawn if (one.mode, one.quantity, one.baseline) == kind]
        mode, quantity, baseline = kind
        located = [(row, one) for row, one in enumerate(own) if one.crossing.status in ("crosses", "between")]
        marks: list[Mark] = [_interval(one, row) for row, one in located if one.crossing.interval]
        for status, (name, colour, symbol) in CROSSINGS.items():
            lengths = [drawn_at(one) if one.crossing.status == status else None for one in own]
            marks += row_points(name, lengths, colour, symbol, unit="tokens")
        label = _capital(f"{mode} {quantity} against {baseline}".strip())
        ticks = length_ticks(float(length) for one in own for length in one.lengths)
        x = Axis("efficiency length, tokens", log=True, ticks=ticks)
        medium = "both" if (quantity, baseline) == (drawn[0].quantity, drawn[0].baseline) else "site"
        views.append(FigureView(label, marks, x, Axis(rows=[one.title for one in own]), medium=medium))
    return views


def drawn_at(one: Comparison) -> float:
    """Where a crossing is drawn: at its length, else at the end of what was measured."""
    crossing = one.crossing
    if crossing.length is not None:
        return crossing.length
    if crossing.status == "between" and crossing.interval:
        low, high = crossing.interval
        return ((low or 1.0) * (high or 1.0)) ** 0.5
    return float(one.lengths[0 if crossing.status == "below" else -1])


def _interval(one: Comparison, row: int) -> LineMark:
    low, high = one.crossing.interval or (None, None)
    return LineMark(x=[low or one.lengths[0], high or one.lengths[-1]], y=[row, row], width=4)


def _scaling(found: Sequence[Growth], look: Mapping[str, Look]) -> list[FigureView]:
    views = []
    for mode in dict.fromkeys(one.mode for one in found):
        own = sorted((one for one in found if one.mode == mode), key=lambda one: one.time.exponent if one.time else 0.0)
        marks = [
            *row_points("time", [one.time and one.time.exponent for one in own], "--hue-1"),
            *row_points("memory", [one.memory and one.memory.exponent for one in own], "--hue-2", "diamond"),
            *row_points("allowed", [one.limit for one in own], "--ink", "line-ns-open", 14),
        ]
        x = Axis("exponent of the length", from_zero=True)
        views.append(FigureView(_capital(mode), marks, x, Axis(rows=[one.title for one in own])))
    return views


VIEWS: dict[str, Callable[[Any, Mapping[str, Look]], list[FigureView]]] = {
    "growth": _growth,
    "decode": _growth,
    "roofline": _roofline,
    "relative": _relative,
    "efficiency_length": _efficiency_length,
    "crossover": _crossover,
    "scaling": _scaling,
}


# ----------------------------------------------------------------------------------------------------- parts of figures


def row_points(
    name: str, values: Values, colour: str, symbol: str = "circle", size: float = 10, unit: str = ""
) -> list[Mark]:
    """A point in each row that has a value; nothing where none has."""
    found = [(value, row) for row, value in enumerate(values) if value is not None]
    if not found:
        return []
    x, y = zip(*found, strict=True)
    hover = [f"{value:,.0f} {unit}" if unit else f"{name} {value:,.2f}" for value in x]
    return [PointsMark(x=x, y=y, colour=colour, symbol=symbol, size=size, name=name, group=name, hover=hover)]


def length_line(line: LengthCurve, look: Mapping[str, Look], hover: Sequence[str]) -> LineMark:
    own, group = look[shown(line.mechanism)], shown(line.mechanism)
    width = 1.8 if own.hue else 3.0
    return LineMark(x=line.x, y=line.y, name=line.title, group=group, hover=hover, width=width, **own.line)


def _pairs(line: LengthCurve) -> list[tuple[float, float]]:
    return list(zip(line.x, line.y, strict=True))


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
