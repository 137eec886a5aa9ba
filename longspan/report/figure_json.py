"""A figure as plain JSON, which the scripts of the page draw as SVG.

render(figure) -> {"title": ..., "views": [{"label": ..., "marks": [...], "x": {...}, "y": {...}}, ...]}

Colours stay names of style-sheet variables, so that a figure changes with the theme. Texts are shown as text by the
scripts, never as markup. Numbers have five digits, more than a screen can show.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from longspan.core.printable import shown
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

KINDS = {
    LineMark: "line",
    PointsMark: "points",
    BandMark: "band",
    BarMark: "bar",
    TextMark: "text",
    ReferenceMark: "reference",
    ImageMark: "image",
}
USUAL = {"dash": "solid", "symbol": "", "outline": False, "width": 2.0, "size": 6.0, "row": 0, "column": 0}


def render(figure: Figure, family_of: Callable[[str], str] = lambda group: "") -> dict[str, Any]:
    """`family_of` names the small plot to which the marks of a group belong, for figures with many lines."""
    views = [_view(view, family_of) for view in figure.views if view.medium != "paper"]
    return {"title": shown(figure.title), "views": views}


def _view(view: FigureView, family_of: Callable[[str], str]) -> dict[str, Any]:
    groups = dict.fromkeys(mark.group for mark in view.marks if isinstance(mark, LineMark | PointsMark) and mark.group)
    families = {shown(group): shown(family) for group in groups if (family := family_of(group))}
    made: dict[str, Any] = {
        "label": shown(view.title),
        "x": _axis(view.x),
        "y": _axis(view.y),
        "marks": [_mark(mark) for mark in view.marks],
    }
    if view.height:
        made["height"] = view.height
    if view.compare:
        made["compare"] = True
    if view.labelled:
        made["labelled"] = True
    return made | ({"families": families} if len(set(families.values())) > 1 else {})


def _axis(axis: Axis) -> dict[str, Any]:
    ticks = None if axis.ticks is None else [[_number(value), shown(text)] for value, text in axis.ticks.items()]
    made = {"label": shown(axis.label), "log": axis.log, "ticks": ticks, "zero": axis.from_zero}
    return _without_empty(made | {"rows": [shown(row) for row in axis.rows], "heights": list(axis.heights)})


def _mark(mark: Mark) -> dict[str, Any]:
    """The fields of a mark; empty and default ones are left out."""
    if isinstance(mark, ImageMark):
        fields = asdict(mark) | {"values": [[_number(value) for value in line] for line in np.asarray(mark.values)]}
        fields["low"], fields["high"] = map(_number, mark.limits)
    else:
        fields = asdict(mark)
    made = {name: _plain(value) for name, value in fields.items()}
    kept = {name: value for name, value in made.items() if name not in USUAL or value != USUAL[name]}
    return {"kind": KINDS[type(mark)], **_without_empty(kept)}


def _plain(value: Any) -> Any:
    """Printable text, and numbers that JSON can represent."""
    if isinstance(value, str):
        return "\n".join(map(shown, value.split("\n")))
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float | np.number):
        return _number(value)
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        return [_plain(item) for item in value]
    raise AssertionError(f"no mark has a {type(value).__name__}")


def _number(value: Any) -> float | int | None:
    """
    >>> _number(280.43512), _number(4096.0), _number(float("nan"))
    (280.44, 4096, None)
    """
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.5g}") if abs(value) < 1e5 else float(value)
    return int(short) if short.is_integer() else short


def _without_empty(made: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in made.items() if value or (value == 0 and value is not False)}
