"""The figures of the efficiency lab as Plotly JSON, in the form that report/plots.py explains.

panels(finding, looks(...)) -> [{"title": ..., "figure": {"views": [...]}}, ...], one for each bench and pattern
"""

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from longspan.analysis import LAB
from longspan.analysis.crossover import Comparison
from longspan.analysis.finding import Finding
from longspan.analysis.growth import Curves, LengthCurve
from longspan.analysis.roofline import Roof
from longspan.analysis.scaling import Growth
from longspan.report.plots import Look, looks
from longspan.report.questions import figure, mechanisms, plain_view, row_label, row_marks, row_view
from longspan.results.board import shown

LENGTHS = "tokens"
MARKS = {  # what a crossing is drawn as
    "crosses": ("crosses", "--hue-1", "circle"),
    "between": ("between two lengths", "--hue-1", "diamond"),
    "below": ("below the shortest", "--hue-3", "triangle-left"),
    "above": ("above the longest, if at all", "--hue-2", "triangle-right"),
}


def panels(finding: Finding, look: Mapping[str, Look] | None = None) -> list[dict[str, Any]]:
    """The figures of any finding; one without a title where the question has a single figure."""
    if finding.question not in LAB:
        made = figure(finding, look)
        return [] if made is None else [{"title": "", "figure": made}]
    look = look or looks(mechanisms([finding]))
    found = []
    for where, items in _together(finding.figure or ()):
        made = DRAWN[finding.question](items, look)
        if made["views"]:
            found.append({"title": where, "figure": made})
    return found


def _together(items: Iterable[Any]) -> list[tuple[str, list[Any]]]:
    """What shares a bench and a pattern."""

    def place(item: Any) -> str:
        return shown(" · ".join(word for word in (item.where, item.pattern) if word))

    return [(key, list(group)) for key, group in groupby(sorted(items, key=place), key=place)]


def _curves(found: Sequence[Curves], look: Mapping[str, Look]) -> dict[str, Any]:
    views = []
    for one in found:
        quantity = one.label.partition(",")[0]
        name = ", ".join(filter(None, (quantity if one.mode == "decode" else f"{one.mode} {quantity}", one.variant)))
        traces = [_line(line, look, "%{x:,} tokens: %{y:,.4~g}") for line in one.lines]
        axes = _logarithmic(length_ticks(x for line in one.lines for x in line.x), value_ticks(one.lines, "y"))
        views.append(plain_view(name[0].upper() + name[1:], traces, LENGTHS, one.label, axes) | {"height": 460})
    return {"views": views}


def _roofs(found: Sequence[Roof], look: Mapping[str, Look]) -> dict[str, Any]:
    views = []
    for roof in found:
        ceiling = ceiling_of(roof)
        traces = [] if ceiling is None else [_ceiling(ceiling)]
        for line, lengths in zip(roof.lines, roof.lengths, strict=True):
            texts = {"text": [f"{length:,}" for length in lengths]}
            traces.append(_line(line, look, "%{text} tokens: %{y:,.4~g} TFLOP/s") | texts)
        drawn = [*roof.lines, *([] if ceiling is None else [ceiling])]
        axes = _logarithmic(value_ticks(drawn, "x"), value_ticks(drawn, "y"))
        name = f"{roof.mode[0].upper()}{roof.mode[1:]}, {roof.variant}"
        x = "counted operations per byte that must move"
        views.append(plain_view(name, traces, x, "TFLOP/s reached", axes) | {"height": 460})
    return {"views": views}


def ceiling_of(roof: Roof) -> LengthCurve | None:
    """What cannot be passed: bandwidth on the left of the ridge, arithmetic on its right; None if not measured."""
    if roof.bandwidth is None or roof.rate is None:
        return None
    ridge = roof.rate / roof.bandwidth
    found = [ridge, *(x for line in roof.lines for x in line.x)]
    ends = (min(found) / 2, ridge, 2 * max(found))
    heights = tuple(min(x * roof.bandwidth, roof.rate) / 1e12 for x in ends)
    title = f"roof: {roof.bandwidth / 1e9:,.0f} GB/s, {roof.rate / 1e12:,.0f} TFLOP/s"
    return LengthCurve("", title, ends, heights)


def _ceiling(line: LengthCurve) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": line.title,
        "meta": {"title": line.title, "group": line.title},
        "x": list(line.x),
        "y": list(line.y),
        "line": {"color": "--line-strong", "width": 2.5, "dash": "solid"},
        "marker": {"color": "--line-strong", "symbol": "circle"},
        "hoverinfo": "skip",
    }


def _crossings(found: Sequence[Comparison], look: Mapping[str, Look]) -> dict[str, Any]:
    views = []
    kinds = dict.fromkeys((one.mode, one.quantity, one.baseline) for one in found)
    for mode, quantity, baseline in kinds:
        own = [one for one in found if (one.mode, one.quantity, one.baseline) == (mode, quantity, baseline)]
        own = [one for one in own if one.crossing.status in MARKS]
        if not own:
            continue
        labels = [row_label(one.title) for one in own]
        traces = [_interval(one, name) for one, name in zip(own, labels, strict=True) if one.crossing.interval]
        for status, (words, colour, symbol) in MARKS.items():
            chosen = [
                (mark_at(one), name) for one, name in zip(own, labels, strict=True) if one.crossing.status == status
            ]
            if chosen:
                values, names = zip(*chosen, strict=True)
                traces.append(row_marks(words, values, names, colour, symbol, 10) | {"hovertemplate": "%{x:,.0f}"})
        name = f"{mode} {quantity} against {baseline}".strip()
        made = row_view(name[0].upper() + name[1:], traces, labels, "efficiency length, tokens")
        made["layout"]["xaxis"] |= _log_axis(length_ticks(float(length) for one in own for length in one.lengths))
        views.append(made)
    return {"views": views, "kind": "rows"}


def mark_at(one: Comparison) -> float:
    """Where a crossing is drawn: at its length, else at the end of what was measured."""
    crossing = one.crossing
    if crossing.length is not None:
        return crossing.length
    if crossing.status == "between" and crossing.interval:
        low, high = crossing.interval
        return ((low or 1.0) * (high or 1.0)) ** 0.5
    return float(one.lengths[0 if crossing.status == "below" else -1])


def _interval(one: Comparison, name: str) -> dict[str, Any]:
    low, high = one.crossing.interval or (None, None)
    first, last = one.lengths[0], one.lengths[-1]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [low or first, high or last] if one.crossing.status in ("crosses", "between") else [],
        "y": [name, name],
        "line": {"color": "--line-strong", "width": 4},
        "hoverinfo": "skip",
        "meta": {},
    }


def _exponents(found: Sequence[Growth], look: Mapping[str, Look]) -> dict[str, Any]:
    views = []
    for mode in dict.fromkeys(one.mode for one in found):
        own = sorted((one for one in found if one.mode == mode), key=lambda one: one.time.exponent if one.time else 0.0)
        labels = [row_label(one.title) for one in own]
        traces = [
            row_marks("time", [one.time and one.time.exponent for one in own], labels, "--hue-1", "circle", 10),
            row_marks("memory", [one.memory and one.memory.exponent for one in own], labels, "--hue-2", "diamond", 10),
        ]
        traces.append(row_marks("allowed", [one.limit for one in own], labels, "--ink", "line-ns-open", 14))
        views.append(row_view(mode[0].upper() + mode[1:], traces, labels, "exponent of the length"))
    return {"views": views, "kind": "rows"}


DRAWN: dict[str, Callable[[Any, Mapping[str, Look]], dict[str, Any]]] = {
    "growth": _curves,
    "decode": _curves,
    "roofline": _roofs,
    "crossover": _crossings,
    "scaling": _exponents,
}


# ----------------------------------------------------------------------------------------------------- parts of figures


def _line(line: LengthCurve, look: Mapping[str, Look], hover: str) -> dict[str, Any]:
    own, title = look[shown(line.mechanism)], shown(line.title)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": html.escape(title, quote=False),
        "meta": {"title": title, "group": shown(line.mechanism)},
        "x": list(line.x),
        "y": list(line.y),
        "line": {"color": own.colour, "dash": own.dash, "width": 1.8 if own.hue else 3},
        "marker": {"color": own.colour, "symbol": own.symbol, "size": 6},
        "hovertemplate": hover,
    }


def length_ticks(lengths: Iterable[float]) -> dict[str, Any]:
    """A tick for each measured length, every second one where there are many; 4096 tokens are 4K."""
    found = sorted(set(lengths))
    chosen = found[:: 2 if len(found) > 6 else 1]
    return {"tickvals": chosen, "ticktext": [length_text(length) for length in chosen]}


def length_text(length: float) -> str:
    """
    >>> length_text(65536), length_text(256), length_text(1000)
    ('64K', '256', '1,000')
    """
    return f"{length / 1024:.0f}K" if length >= 1024 and length % 1024 == 0 else f"{length:,.0f}"


def value_ticks(lines: Sequence[LengthCurve], axis: str) -> dict[str, Any]:
    chosen = round_values([value for line in lines for value in getattr(line, axis)])
    return {"tickvals": chosen, "ticktext": [f"{value:,.10g}" for value in chosen]}


def round_values(values: Sequence[float]) -> list[float]:
    """Powers of ten around the values; where they span less than two, also 2 and 5 times these.

    >>> round_values([3.0, 40.0])
    [2.0, 5.0, 10.0, 20.0, 50.0]
    """
    low, high = min(values), max(values)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 100 else (1,)
    every = [float(f"{step}e{decade}") for decade in decades for step in steps]
    inside = [value for value in every if low / 2 <= value <= 2 * high]
    return inside or every


def _logarithmic(x: Mapping[str, Any], y: Mapping[str, Any]) -> dict[str, Any]:
    axes = {"xaxis": _log_axis(x), "yaxis": _log_axis(y) | {"automargin": True}}
    return {**axes, "hovermode": "closest", "margin": {"l": 54}}


def _log_axis(ticks: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "log", "rangemode": "normal", "showgrid": True, **ticks}
