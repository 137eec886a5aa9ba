"""A figure of the site as plain Plotly JSON. The page resolves the names of colours, so that it can change its theme.

render(figure) -> {"title": ..., "views": [{"label": ..., "traces": [...], "layout": {...}, ...}, ...]}

Every trace has a `meta`: its group, and its title if it is in the legend. Text is escaped, because Plotly reads a
little HTML in it; `meta` and `label` are not, because the page treats them as text.
"""

import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from longspan.report.labels import place_labels
from longspan.report.marks import (
    Axis,
    BandMark,
    BarMark,
    Figure,
    FigureView,
    ImageMark,
    LineMark,
    Mark,
    PointsMark,
    ReferenceMark,
    TextMark,
)
from longspan.results.board import shown

ROW = 26  # pixels for a named row
FRAME = (1100.0, 300.0)  # pixels of usual axes on a desk, and of a letter, to place labels
LETTER = (6.6, 15.0)
COLOURS = {"grey": [[0, "#000000"], [1, "#ffffff"]], "cividis": "Cividis"}


def render(figure: Figure) -> dict[str, Any]:
    views = [_view(view) for view in figure.views if view.medium != "paper"]
    return {"title": shown(figure.title), "views": views}


def _view(view: FigureView) -> dict[str, Any]:
    layout = _image_layout(view) if view.images else _layout(view)
    places = iter(_label_places(view))
    height = 120 + ROW * len(view.y.rows) if view.y.rows else view.height
    return {
        "label": shown(view.title),
        "traces": [trace for mark in view.marks for trace in _traces(mark, places)],
        "x": _escaped(view.x.label),
        "y": "" if len(view.images) == 1 else _escaped(view.y.label),
        "layout": layout,
        "labelled": view.labelled,
        **({"height": height} if height else {}),
    }


def _escaped(text: str) -> str:
    """Plotly knows a few tags, but not every entity: quotes stay as they are. Between two dollars it reads LaTeX."""
    return html.escape(shown(text), quote=False).replace("$", "&#36;")


# --------------------------------------------------------------------------------------------------------------- traces


def _traces(mark: Mark, places: Any) -> list[dict[str, Any]]:
    match mark:
        case LineMark():
            return [_line(mark)]
        case PointsMark():
            return _points(mark, [next(places) for _ in mark.labels])
        case BandMark():
            x, outline = list(mark.x), [*mark.high, *reversed(mark.low)]
            fill = {"fill": "toself", "fillcolor": f"{mark.colour}-soft", "line": {"width": 0}}
            return [_scatter("lines", x + x[::-1], outline, group=mark.group) | fill]
        case BarMark():
            return [_bar(mark)]
        case TextMark():
            font = {"textposition": "middle right", "textfont": {"color": "--quiet", "size": 12}}
            return [_scatter("text", [mark.x], [mark.y]) | {"text": [f" {_escaped(mark.text)}"], **font}]
        case ImageMark():
            return [_image(mark)]
        case ReferenceMark():
            return []  # part of the layout


def _scatter(
    mode: str, x: Sequence, y: Sequence, name: str = "", group: str = "", hover: Sequence[str] = ()
) -> dict[str, Any]:
    tooltip = {"hovertext": [_escaped(text) for text in hover], "hovertemplate": "%{hovertext}"}
    return {
        "type": "scatter",
        "mode": mode,
        "x": list(x),
        "y": list(y),
        "name": _escaped(name),
        "meta": {"group": shown(group)} | ({"title": shown(name)} if name else {}),
        **(tooltip if hover else {"hoverinfo": "skip"}),
    }


def _line(line: LineMark) -> dict[str, Any]:
    mode = "lines+markers" if line.symbol else "lines"
    return _scatter(mode, line.x, line.y, line.name, line.group, line.hover) | {
        "line": {"color": line.colour, "dash": line.dash, "width": line.width},
        "marker": {"color": line.colour, "symbol": line.symbol or "circle", "size": line.size},
    }


def _points(points: PointsMark, places: Sequence[str]) -> list[dict[str, Any]]:
    edge = {"width": 1.5, "color": "--surface"} if points.outline else {"width": 2, "color": points.colour}
    marker = {"color": points.colour, "symbol": points.symbol, "size": points.size, "line": edge}
    trace = _scatter("markers", points.x, points.y, points.name, points.group, points.hover) | {"marker": marker}
    if points.labels:
        text = {"text": [_escaped(label) for label in points.labels], "textposition": list(places)}
        font = {"textfont": {"color": "--ink", "size": 12}, "cliponaxis": False}
        trace |= {"mode": "markers+text", **text, **font}
        trace["marker"]["opacity"] = 0.85
    if points.interval:
        (y,), (low, high) = points.y, points.interval
        reach = {"array": [high - (y or 0.0)], "arrayminus": [(y or 0.0) - low], "symmetric": False}
        trace["error_y"] = {"type": "data", "color": points.colour, "thickness": 1.2, "width": 0, **reach}
    if not points.symbol.startswith("line-"):
        return [trace]
    edge = {"width": 5, "color": "--surface"}
    border = {"marker": marker | {"color": "--surface", "line": edge}}  # keeps a tick visible on a dark bar
    return [_scatter("markers", points.x, points.y, group=points.group) | border, trace]


def _bar(bar: BarMark) -> dict[str, Any]:
    made = _scatter("", [bar.x], [bar.y], group=bar.group, hover=[bar.hover])
    made |= {
        "type": "bar",
        "orientation": "h",
        "width": [0.62],
        "marker": {"color": bar.colour},
        "textposition": "none",
    }
    if bar.spread is not None:
        made["error_x"] = {"type": "data", "array": [bar.spread], "color": "--quiet", "thickness": 1.2, "width": 3}
    return made


def _image(image: ImageMark) -> dict[str, Any]:
    values = np.asarray(image.values, dtype=float)
    rows = [[None if math.isnan(value) else float(f"{value:.3g}") for value in line] for line in values]
    bar = {"orientation": "h", "y": 1.01, "yanchor": "bottom", "len": 0.6, "thickness": 10, "outlinewidth": 0}
    bar["title"] = {"text": _escaped(image.bar), "side": "right", "font": {"size": 12.5}}
    number, (low, high) = _number(image), image.limits
    scale = {"zmin": low, "zmax": high, "colorscale": COLOURS[image.colours], "showscale": bool(image.bar)}
    hover: dict[str, Any] = {"hovertemplate": "column %{x}, row %{y}: %{z}<extra></extra>", "meta": {"group": ""}}
    if image.cells:
        hover |= {
            "text": [["<br>".join(map(_escaped, text.split("\n"))) for text in line] for line in image.cells],
            "texttemplate": "%{text}",
        }
        hover["hovertemplate"] = "%{text}<extra></extra>"
    return {
        "type": "heatmap",
        "z": rows,
        "xaxis": f"x{number}",
        "yaxis": f"y{number}",
        "colorbar": bar,
        **scale,
        **hover,
    }


def _label_places(view: FigureView) -> list[str]:
    """Where the labels go, each with one of Plotly's words for it, in the order of the marks."""
    found = [
        (x, y, mark.size / 2, label)
        for mark in view.marks
        if isinstance(mark, PointsMark)
        for x, y, label in zip(mark.x, mark.y, mark.labels, strict=False)
        if x is not None and y is not None
    ]
    if not found:
        return []
    xs, ys, radii, labels = zip(*found, strict=True)
    wide, high = FRAME
    across, up = max(xs) - min(xs) or 1.0, max(ys) - min(ys) or 1.0
    points = [(wide * (x - min(xs)) / across, high * (y - min(ys)) / up) for x, y in zip(xs, ys, strict=True)]
    sizes = [(LETTER[0] * len(label), LETTER[1]) for label in labels]
    return [place for place, _, _ in place_labels(points, radii, sizes, (-60.0, -30.0, wide + 60.0, high + 30.0))]


# --------------------------------------------------------------------------------------------------------------- layout


def _layout(view: FigureView) -> dict[str, Any]:
    references = [mark for mark in view.marks if isinstance(mark, ReferenceMark)]
    return {
        "xaxis": _axis(view.x),
        "yaxis": _axis(view.y) | {"automargin": True},
        "hovermode": "x unified" if view.compare else "closest",
        "barmode": "overlay",
        "shapes": [_reference_line(mark) for mark in references],
        "annotations": [_reference_label(mark, view) for mark in references],
    }


def _axis(axis: Axis) -> dict[str, Any]:
    made: dict[str, Any] = {"showgrid": True, "rangemode": "tozero" if axis.from_zero else "normal"}
    ticks = dict(enumerate(axis.rows)) if axis.rows else axis.ticks
    if axis.log:
        made["type"] = "log"
    if ticks is not None:
        made |= {"tickvals": list(ticks), "ticktext": [_escaped(text) for text in ticks.values()]}
    if axis.rows:
        made |= {"range": [len(axis.rows) - 0.4, -0.6]}
    return made


def _reference_line(mark: ReferenceMark) -> dict[str, Any]:
    along = "y" if mark.axis == "x" else "x"
    place = {f"{along}ref": "paper", f"{along}0": 0, f"{along}1": 1, f"{mark.axis}0": mark.value}
    line = {"color": "--quiet", "width": 1, "dash": "dot"}
    return {"type": "line", **place, f"{mark.axis}1": mark.value, "line": line, "layer": "below"}


def _reference_label(mark: ReferenceMark, view: FigureView) -> dict[str, Any]:
    axis, along = (view.x, "y") if mark.axis == "x" else (view.y, "x")
    value = math.log10(mark.value) if axis.log else mark.value  # what annotations, unlike shapes, ask for
    place = {f"{along}ref": "paper", along: 1, mark.axis: value, "xanchor": "right"}
    place["yanchor"] = "top" if mark.axis == "x" else "bottom"
    return {**place, "showarrow": False, "text": _escaped(mark.label), "font": {"size": 11, "color": "--quiet"}}


def _number(image: ImageMark) -> str:
    """Which of the axes: Plotly counts from 1 and leaves the 1 away."""
    number = 2 * image.column + image.row + 1
    return "" if number == 1 else str(number)


def _image_layout(view: FigureView) -> dict[str, Any]:
    """Each image in its own axes, pixels as squares, rows from the top down."""
    images = view.images
    columns, rows = 1 + max(image.column for image in images), 1 + max(image.row for image in images)
    single = len(images) == 1
    layout: dict[str, Any] = {"hovermode": "closest", "annotations": []}
    layout["margin"] = {"t": 60} if single else {"r": 8, "b": 12, "t": 56}
    for image in images:
        number = _number(image)
        plain = {"showgrid": False, "zeroline": False, "showline": False, "ticks": "", "showticklabels": single}
        plain |= {"constrain": "domain", "ticklabelstandoff": 4}
        across = [image.column / columns, (image.column + (1.0 if single else 0.94)) / columns]
        low = (rows - 1 - image.row) / rows
        up = [low + (0.01 if image.row < rows - 1 else 0.0), low + 1 / rows - (0.01 if image.row else 0.0)]
        toward = "middle" if single else "bottom" if image.row == 0 else "top"
        down = {"autorange": "reversed", "scaleanchor": f"x{number}", "constraintoward": toward}
        x, y = {"domain": across, "anchor": f"y{number}"}, {"domain": up, "anchor": f"x{number}"}
        ticks_x, ticks_y = (_axis(axis) if single else {} for axis in (view.x, view.y))
        layout[f"xaxis{number}"] = ticks_x | plain | x
        layout[f"yaxis{number}"] = ticks_y | plain | y | down
        if single:
            layout["yaxis"]["title"] = {"text": _escaped(view.y.label), "standoff": 10, "font": {"size": 12.5}}
        if image.title:
            place = {"xref": f"x{number} domain", "yref": f"y{number} domain", "x": 0.5, "y": 1.0, "yanchor": "bottom"}
            note = {"showarrow": False, "text": _escaped(image.title), "font": {"size": 11}}
            layout["annotations"].append(place | note)
    return layout
