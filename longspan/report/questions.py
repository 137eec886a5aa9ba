"""The figure of each question as Plotly JSON, in the form that report/plots.py explains.

figure(finding, looks(...)) -> {"views": [...], "kind": ...}, or None where there is nothing to draw
"""

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from longspan.analysis.convergence import LEVELS, Milestones
from longspan.analysis.embeddings import Similarity
from longspan.analysis.extrapolation import Curve
from longspan.analysis.finding import Finding
from longspan.analysis.gap import TrainTestGap
from longspan.analysis.growth import Curves
from longspan.analysis.rollout import Gallery
from longspan.analysis.roofline import Roof
from longspan.analysis.span import Bar
from longspan.analysis.tradeoff import Panel, Point
from longspan.analysis.transfer import Transfer
from longspan.report.plots import Look, label_places, looks
from longspan.results.board import shown

ROW = 26  # pixels for a line of a figure that has a line for each mechanism
TILES = 8  # pixels a side whose tiles a screen can show; the paper figure has them all
GREY = [[0, "#000000"], [1, "#ffffff"]]
FIRST, SECOND = "--hue-2", "--hue-1"  # the two ends of a dumbbell


def mechanisms(findings: Iterable[Finding]) -> list[str]:
    """The mechanisms that figures draw, for `looks`."""
    found = []
    for finding in findings:
        for item in finding.figure or ():
            found += [point.mechanism for point in item.points] if isinstance(item, Panel) else []
            found += [line.mechanism for line in item.lines] if isinstance(item, Curves | Roof) else []
            found += [item.mechanism] if isinstance(item, Bar | Curve) else []
    return found


def figure(finding: Finding, look: Mapping[str, Look] | None = None) -> dict[str, Any] | None:
    if not finding.figure:
        return None
    return DRAWN[finding.question](finding.figure, look or looks(mechanisms([finding])))


# ---------------------------------------------------------------------------------------------------------- one by one


def _tradeoff(panels: Sequence[Panel], look: Mapping[str, Look]) -> dict[str, Any]:
    views = []
    for panel in panels:
        views.append(_bubbles(panel, look, panel.by_speed, "speed", "training steps per second", "memory_gb"))
        if any(point.memory_gb is not None for point in panel.points):
            views.append(_bubbles(panel, look, panel.by_memory, "memory_gb", "peak memory, GB", "speed"))
    return {"views": views, "kind": "points"}


def _bubbles(
    panel: Panel, look: Mapping[str, Look], best: Sequence[int], price: str, title: str, area: str
) -> dict[str, Any]:
    points = [point for point in panel.points if getattr(point, price) is not None]
    pairs = [(getattr(point, price), 100 * point.score) for point in points]
    largest = max((getattr(point, area) or 0.0 for point in points), default=0.0) or 1.0
    places = label_places(pairs, [point.title for point in points])
    traces = [_front([(getattr(panel.points[i], price), 100 * panel.points[i].score) for i in best])]
    for point, (x, y), place in zip(points, pairs, places, strict=True):
        size = 9 + 27 * ((getattr(point, area) or 0.0) / largest) ** 0.5
        traces.append(_bubble(point, x, y, place, size, look[shown(point.mechanism)]))
    axis = "speed" if price == "speed" else "memory"
    return plain_view(f"{panel.label}: {axis}", traces, title, "average score, %", {"hovermode": "closest"})


def _bubble(point: Point, x: float, y: float, place: str, size: float, look: Look) -> dict[str, Any]:
    memory = "" if point.memory_gb is None else f", {point.memory_gb:.2f} GB"
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": html.escape(point.title),
        "meta": {"title": point.title, "group": point.mechanism},
        "x": [x],
        "y": [y],
        "text": [html.escape(point.title)],
        "textposition": place,
        "cliponaxis": False,
        "marker": {
            "color": look.colour,
            "symbol": look.symbol,
            "size": size,
            "opacity": 0.85,
            "line": {"width": 1.5, "color": "--surface"},
        },
        "textfont": {"color": "--ink", "size": 12},
        "hovertemplate": f"%{{y:.2f}} %, {point.speed:.1f} steps/s{memory}",
    }


def _front(points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "line": {"color": "--line-strong", "width": 1.5, "dash": "dot"},
        "hoverinfo": "skip",
        "meta": {},
    }


def _span(bars: Sequence[Bar], look: Mapping[str, Look]) -> dict[str, Any]:
    """Bars from the top down as in the table, and a tick where attention to all tokens alike would end."""
    views = []
    for rules in dict.fromkeys(bar.rules for bar in bars):
        own = [bar for bar in bars if bar.rules == rules]
        labels = [row_label(f"{bar.task} · {bar.title}") for bar in own]
        traces = [
            {
                "type": "bar",
                "orientation": "h",
                "x": [bar.span],
                "y": [label],
                "marker": {"color": look[shown(bar.mechanism)].colour},
                "width": [0.62],
                "meta": {"group": bar.mechanism},
                "hovertemplate": f"%{{x:.1f}} tokens of {bar.length:.0f}, by {bar.source}",
                "name": "",
            }
            for bar, label in zip(own, labels, strict=True)
        ]
        uniform = row_marks("uniform attention", [bar.uniform for bar in own], labels, "--ink", "line-ns-open", 24)
        views.append(row_view(rules, [*traces, uniform], labels, "tokens between a query and what it attends to"))
    return {"views": views, "kind": "rows"}


def _gap(pairs: Sequence[TrainTestGap], look: Mapping[str, Look]) -> dict[str, Any]:
    views = []
    for task, origin in dict.fromkeys((pair.task, pair.origin) for pair in pairs):
        own = sorted((p for p in pairs if (p.task, p.origin) == (task, origin)), key=lambda pair: pair.gap)
        labels = [row_label(pair.title) for pair in own]
        ends = [("train", [100 * pair.train for pair in own]), ("test", [100 * pair.test for pair in own])]
        views.append(_dumbbells(f"{task}, {origin}", labels, ends, "accuracy, %"))
    return {"views": views, "kind": "rows"}


def _convergence(found: Sequence[Milestones], look: Mapping[str, Look]) -> dict[str, Any] | None:
    views = []
    for origin in dict.fromkeys(one.origin for one in found):
        own = [one for one in found if one.origin == origin and None not in one.steps]
        own = sorted(own, key=lambda one: one.steps[0] or 0.0)
        if own:
            labels = [row_label(one.title) for one in own]
            ends = [(f"{100 * level:.0f} %", [one.steps[i] for one in own]) for i, level in enumerate(LEVELS)]
            views.append(_dumbbells(origin, labels, ends, "training steps"))
    return {"views": views, "kind": "rows"} if views else None


def _transfer(found: Sequence[Transfer], look: Mapping[str, Look]) -> dict[str, Any]:
    views = []
    for rules in dict.fromkeys(one.rules for one in found):
        own = [one for one in found if one.rules == rules]
        labels = [row_label(f"{one.title}, seed {one.seed}") for one in own]
        ends = [("Pathfinder", [100 * one.before for one in own]), ("Path-X", [100 * one.after for one in own])]
        view = _dumbbells(rules, labels, ends, "test accuracy, %")
        chance = row_marks("chance on Path-X", [100 * one.chance for one in own], labels, "--ink", "line-ns-open", 14)
        view["traces"].append(chance)
        views.append(view)
    return {"views": views, "kind": "rows"}


def _extrapolation(curves: Sequence[Curve], look: Mapping[str, Look]) -> dict[str, Any]:
    """A line for each mechanism over the length of the blocks, one view for each set of rules."""
    views = []
    for rules in dict.fromkeys(curve.rules for curve in curves):
        own = [curve for curve in curves if curve.rules == rules]
        traces = [
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": html.escape(curve.title),
                "meta": {"title": curve.title, "group": curve.mechanism},
                "x": list(curve.lengths),
                "y": list(curve.perplexities),
                "line": {"color": look[shown(curve.mechanism)].colour, "width": 2},
                "marker": {"symbol": look[shown(curve.mechanism)].symbol, "size": 8},
                "hovertemplate": "%{y:,.2f} at %{x:,} tokens",
            }
            for curve in own
        ]
        ticks = sorted({length for curve in own for length in curve.lengths})
        axis = {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:,}" for tick in ticks]}
        layout = {"xaxis": axis, "yaxis": {"type": "log"}, "hovermode": "closest"}
        title = f"tokens of a block (trained at {' and '.join(f'{n:,}' for n in sorted({c.trained for c in own}))})"
        views.append(plain_view(rules, traces, title, "test perplexity", layout))
    return {"views": views, "kind": "points"}


def _rollout(galleries: Sequence[Gallery], look: Mapping[str, Look]) -> dict[str, Any]:
    """Images above, their maps below."""
    views = []
    for gallery in galleries:
        traces, axes, notes = [], {}, []
        width = 1 / max(len(gallery.examples), 1)
        for column, example in enumerate(gallery.examples):
            across = (column * width, (column + 0.94) * width)
            notes.append(_note(f"{example['label']} → {example['prediction']}", 2 * column + 1))
            for row, (name, scale) in enumerate((("image", GREY), ("map", "Cividis"))):
                number = 2 * column + row + 1
                traces.append(_heat(example[name], scale, number))
                along, toward = ((0.51, 1.0), "bottom") if row == 0 else ((0.0, 0.49), "top")
                axes |= _square(number, across, along, toward=toward)
        who = f"{gallery.title} on {gallery.task}, {gallery.rules}, seed {gallery.seed}"
        layout = {**axes, "annotations": notes, "hovermode": "closest", "margin": {"l": 8, "r": 8, "b": 12, "t": 40}}
        views.append(plain_view(who, traces, "", "", layout) | {"height": 320})
    return {"views": views, "kind": "maps"}


def _embeddings(found: Sequence[Similarity], look: Mapping[str, Look]) -> dict[str, Any] | None:
    views = []
    for one in found:
        who = f"{one.title} on {one.task}, {one.rules}, seed {one.seed}"
        if one.intensity is not None:
            layout = {**_square(1, (0, 1), (0, 1), ticks=True), "hovermode": "closest", "margin": {"t": 60}}
            trace = _cosines(one.intensity, one.intensity)
            views.append(plain_view(f"{who}: intensities", [trace], "intensity", "", layout) | {"height": 540})
        if one.position is not None:
            every = max(1, one.side // TILES)
            trace = _cosines(tiles(one.position, one.side, every, gap=2), one.position)
            layout = {**_square(1, (0, 1), (0, 1)), "hovermode": "closest", "margin": {"t": 60}}
            title = f"a tile for every {every}th pixel: all {one.side} x {one.side} beside it"
            views.append(plain_view(f"{who}: positions", [trace], title, "", layout) | {"height": 540})
    return {"views": views, "kind": "maps"} if views else None


DRAWN: dict[str, Callable[[Any, Mapping[str, Look]], dict[str, Any] | None]] = {
    "tradeoff": _tradeoff,
    "span": _span,
    "gap": _gap,
    "convergence": _convergence,
    "transfer": _transfer,
    "extrapolation": _extrapolation,
    "rollout": _rollout,
    "embeddings": _embeddings,
}


def tiles(position: np.ndarray, side: int, every: int = 1, gap: int = 0) -> np.ndarray:
    """The map of every `every`-th pixel, put side by side where that pixel is; NaN between them, if a gap is wanted."""
    grid = position.reshape(side, side, side, side)[::every, ::every]
    count = grid.shape[0]
    padded = np.full((count, count, side + gap, side + gap), np.nan, dtype=np.float32)
    padded[:, :, :side, :side] = grid
    return padded.transpose(0, 2, 1, 3).reshape(count * (side + gap), count * (side + gap))


# ----------------------------------------------------------------------------------------------------- parts of figures


def _dumbbells(
    label: str, labels: Sequence[str], ends: Sequence[tuple[str, Sequence[float | None]]], title: str
) -> dict[str, Any]:
    """Two marks on a line for each row."""
    (first, starts), (second, stops) = ends
    line_x, line_y = [], []
    for name, start, stop in zip(labels, starts, stops, strict=True):
        line_x += [start, stop, None]
        line_y += [name, name, None]
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": line_x,
        "y": line_y,
        "line": {"color": "--line-strong", "width": 2},
        "hoverinfo": "skip",
        "meta": {},
    }
    marks = [
        row_marks(first, starts, labels, FIRST, "diamond", 11),
        row_marks(second, stops, labels, SECOND, "circle", 11),
    ]
    return row_view(label, [line, *marks], labels, title)


def row_marks(
    name: str, values: Sequence[float | None], labels: Sequence[str], colour: str, symbol: str, size: int
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": list(values),
        "y": list(labels),
        "name": html.escape(name),
        "meta": {"title": name, "group": name},
        "marker": {"color": colour, "symbol": symbol, "size": size, "line": {"width": 2, "color": colour}},
        "hovertemplate": f"{html.escape(name)} %{{x:,.2f}}",
    }


def row_view(label: str, traces: list[dict[str, Any]], labels: Sequence[str], title: str) -> dict[str, Any]:
    """A view with a named line for each row, the first at the top."""
    layout = {
        "yaxis": {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": list(dict.fromkeys(labels))[::-1],
            "automargin": True,
            "showgrid": True,
            "dtick": 1,  # every name, also where Plotly would leave some out
        },
        "xaxis": {"showgrid": True, "rangemode": "tozero"},
        "hovermode": "closest",
        "barmode": "overlay",
    }
    return plain_view(label, traces, title, "", layout) | {"height": 120 + ROW * len(set(labels))}


def _heat(values: Any, scale: Any, number: int) -> dict[str, Any]:
    suffix = "" if number == 1 else str(number)
    return {
        "type": "heatmap",
        "z": values,
        "colorscale": scale,
        "showscale": False,
        "xaxis": f"x{suffix}",
        "yaxis": f"y{suffix}",
        "hovertemplate": "column %{x}, row %{y}: %{z}<extra></extra>",
        "meta": {},
    }


def _cosines(image: np.ndarray, matrix: np.ndarray) -> dict[str, Any]:
    """An image of cosines, coloured by what lies off the diagonal of their matrix: everything is 1 with itself."""
    low, high = np.percentile(matrix[~np.eye(len(matrix), dtype=bool)], [0.5, 99.5])
    rows = [[None if np.isnan(value) else round(float(value), 2) for value in line] for line in image]
    place = {"orientation": "h", "y": 1.01, "yanchor": "bottom", "len": 0.6, "thickness": 10, "outlinewidth": 0}
    bar = {"showscale": True, "colorbar": place, "zmin": float(low), "zmax": float(high)}
    return _heat(rows, "Cividis", 1) | bar


def _square(
    number: int,
    across: tuple[float, float],
    along: tuple[float, float],
    *,
    ticks: bool = False,
    toward: str = "middle",
) -> dict[str, Any]:
    """Axes of one image: pixels are squares, rows run downwards."""
    suffix = "" if number == 1 else str(number)
    plain = {"showticklabels": ticks, "showgrid": False, "zeroline": False, "ticks": "", "constrain": "domain"}
    plain |= {} if ticks else {"title": {"standoff": 26}}  # Plotly leaves no room for a title where there are no ticks
    down = {"autorange": "reversed", "scaleanchor": f"x{suffix}", "anchor": f"x{suffix}", "constraintoward": toward}
    return {
        f"xaxis{suffix}": {**plain, "domain": list(across), "anchor": f"y{suffix}", "rangemode": "normal"},
        f"yaxis{suffix}": {**plain, **down, "domain": list(along)},
    }


def _note(text: str, number: int) -> dict[str, Any]:
    """A few words above one image."""
    suffix = "" if number == 1 else str(number)
    place = {"xref": f"x{suffix} domain", "yref": f"y{suffix} domain", "x": 0.5, "y": 1.0, "yanchor": "bottom"}
    return {**place, "showarrow": False, "text": html.escape(text), "font": {"size": 11}}


def row_label(text: str) -> str:
    """The text of a tick, in which Plotly knows tags but not every entity."""
    return html.escape(shown(text), quote=False)


def plain_view(label: str, traces: list[dict[str, Any]], x: str, y: str, layout: dict[str, Any]) -> dict[str, Any]:
    return {"label": shown(label), "traces": traces, "x": x, "y": y, "layout": layout}
