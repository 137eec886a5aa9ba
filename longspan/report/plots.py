"""Figures of the report, as plain Plotly JSON.

A figure is a list of views that a reader switches between. Colours are written as names of style-sheet variables
(`--hue-3`), which the page resolves for the light or the dark theme; every mechanism keeps one colour, one dash and one
symbol on all pages. Names from cards are escaped, because Plotly reads a little HTML in them.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longspan.analysis.convergence import MeanCurve, mean_curves
from longspan.analysis.tradeoff import front
from longspan.results.board import Board, Row, shown
from longspan.results.card import Card

HUES = 7  # --hue-1 ... --hue-7 in site.css, safe for the common forms of colour blindness
INKS = ("#1a1c20", "#0072b2", "#d55e00", "#00845f", "#b5518b", "#b07c00", "#3c96cf", "#7a7000")  # the same, on white
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "star")
REFERENCE = "softmax"  # the yardstick wears the colour of the ink


@dataclass(frozen=True)
class Look:
    """How one mechanism is drawn everywhere."""

    hue: int  # 0 is ink
    turn: int  # how often the hues were used up before

    @property
    def colour(self) -> str:
        return f"--hue-{self.hue}"

    @property
    def ink(self) -> str:
        """The colour on white paper."""
        return INKS[self.hue]

    @property
    def dash(self) -> str:
        return DASHES[self.turn % len(DASHES)]

    @property
    def symbol(self) -> str:
        return SYMBOLS[self.turn % len(SYMBOLS)]


def looks(mechanisms: Iterable[str], then: Iterable[str] = ()) -> dict[str, Look]:
    """A look for each mechanism string, the same for the same set of them; those of `then` get what is left."""
    others = sorted({shown(mechanism) for mechanism in mechanisms} - {REFERENCE})
    others += sorted({shown(mechanism) for mechanism in then} - {REFERENCE, *others})
    return {REFERENCE: Look(0, 0)} | {name: Look(1 + i % HUES, i // HUES) for i, name in enumerate(others)}


def learning(cards: Sequence[Card], look: Mapping[str, Look]) -> dict[str, Any] | None:
    """Curves of one task: the mean over seeds, with the range over seeds as a band. None where nothing was recorded."""
    views = []
    score = next((card["score"] for card in cards if card["score"]), {"name": "accuracy", "chance": None})
    name, scale = shown(score["name"]), 100.0 if score.get("unit", "percent") == "percent" else 1.0
    scores, loss = mean_curves(cards, f"valid_{score['name']}"), mean_curves(cards, "valid_loss")
    axis_of_scores = {"title": html.escape(f"validation {name}{', %' if scale > 1 else ''}"), "scale": scale}
    word = html.escape(name[:1].upper() + name[1:])
    for label, curves, by_time, axis in (
        (f"{word} by step", scores, False, axis_of_scores),
        (f"{word} by time", scores, True, axis_of_scores),
        ("Loss by step", loss, False, {"title": "validation loss", "scale": 1.0}),
    ):
        if label == "Loss by step" and score["name"] == "loss":
            continue  # it is the score, and drawn already
        usable = [curve for curve in curves if not by_time or None not in curve.seconds]
        if usable:
            traces = [
                t for curve in usable for t in _curve(curve, look[shown(curve.mechanism)], by_time, axis["scale"])
            ]
            views.append(_view(label, traces, "seconds of training" if by_time else "step", axis["title"]))
    chance = next((card["score"]["chance"] for card in cards if card["score"] and card["score"]["chance"]), None)
    if chance is not None:
        for view in views:
            if view["label"].startswith(f"{word} by"):
                view["chance"] = scale * chance
    return {"views": views} if views else None


def _curve(curve: MeanCurve, look: Look, by_time: bool, scale: float) -> list[dict[str, Any]]:
    x = list(curve.seconds if by_time else curve.steps)
    mean, low, high = ([scale * value for value in values] for values in (curve.mean, curve.low, curve.high))
    group = shown(curve.mechanism)
    line = {
        "type": "scatter",
        "mode": "lines+markers" if len(x) < 3 else "lines",
        "name": html.escape(shown(curve.title)),
        "meta": {"title": shown(curve.title), "group": group},
        "x": x,
        "y": mean,
        "line": {"color": look.colour, "dash": look.dash, "width": 2},
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 7},
        "hovertemplate": "%{y:.2f}",
    }
    if curve.seeds < 2:
        return [line]
    band = {
        "type": "scatter",
        "mode": "lines",
        "x": x + x[::-1],
        "y": high + low[::-1],
        "fill": "toself",
        "fillcolor": f"{look.colour}-soft",
        "line": {"width": 0},
        "meta": {"group": group},
        "hoverinfo": "skip",
    }
    return [band, line]


def tradeoff(view: Board, task: str | None, look: Mapping[str, Look]) -> dict[str, Any] | None:
    """Score against parameters and against speed for one task, or for the first average when `task` is None."""
    views = []
    fractions = view.suite.unit == "percent"
    scale, scored = (100.0, f"test {view.suite.metric}, %") if fractions else (1.0, f"test {view.suite.metric}")
    for label, attribute, cheap_is_less, title in (
        ("Against speed", "steps_per_second", False, "training steps per second"),
        ("Against size", "parameters", True, "parameters"),
    ):
        points = [
            (row, price, scale * score)
            for row in (*view.rows, *view.free)
            if (price := _price(row, task, attribute)) is not None and (score := _score(view, row, task)) is not None
        ]
        if points:
            pairs = [(price, score) for _, price, score in points]
            places = label_places(pairs, [row.title for row, _, _ in points])
            traces = [
                _point(row, task, price, score, look, place, scale)
                for (row, price, score), place in zip(points, places, strict=True)
            ]
            best = front(pairs, cheaper_is_less=cheap_is_less, higher_is_better=view.suite.higher_is_better)
            line = _front([pairs[i] for i in best])
            views.append(_view(label, [line, *traces], title, html.escape(scored)))
    return {"views": views, "kind": "points"} if views else None


def _price(row: Row, task: str | None, attribute: str) -> float | None:
    return getattr(row if task is None else row.cells[task], attribute)


def _score(view: Board, row: Row, task: str | None) -> float | None:
    if task is None:
        return row.averages[view.suite.averages[0].name].value if view.suite.averages else None
    cell = row.cells[task]
    return cell.value if cell.status == "ok" else None


def _point(
    row: Row, task: str | None, price: float, score: float, look: Mapping[str, Look], place: str, scale: float
) -> dict:
    own = look[row.mechanism]
    name = html.escape(row.title)
    point = {
        "type": "scatter",
        "mode": "markers+text",
        "name": name,
        "meta": {"title": row.title, "group": row.mechanism},
        "x": [price],
        "y": [score],
        "text": [name],
        "textposition": place,
        "cliponaxis": False,
        "marker": {"color": own.colour, "symbol": own.symbol, "size": 11, "line": {"width": 1.5, "color": "--surface"}},
        "textfont": {"color": "--ink", "size": 12},
        "hovertemplate": "%{y:.2f} % at %{x:,.4~g}" if scale > 1 else "%{y:.4~g} at %{x:,.4~g}",
    }
    interval = row.cells[task].interval if task else None
    if interval:
        low, high = (scale * end for end in interval)
        reach = {"array": [high - score], "arrayminus": [score - low], "symmetric": False}
        point["error_y"] = {"type": "data", "color": own.colour, "thickness": 1.2, "width": 0, **reach}
    return point


LABEL_WIDTH, LABEL_HEIGHT, GAP = 0.0075, 0.055, 0.045  # of a letter, a line, a marker, as shares of a usual figure
PLACES = {"top center": (0.0, 1), "bottom center": (0.0, -1), "middle right": (0.5, 0), "middle left": (-0.5, 0)}


def label_places(points: Sequence[tuple[float, float]], labels: Sequence[str]) -> list[str]:
    """Where each label goes around its point, so that few of them meet: greedily, the freest of four places."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    wide, high = max(xs) - min(xs) or 1.0, max(ys) - min(ys) or 1.0
    spots = [((x - min(xs)) / wide, (y - min(ys)) / high) for x, y in points]
    taken = [(x - 0.008, y - 0.02, x + 0.008, y + 0.02) for x, y in spots]
    chosen = []
    for (x, y), label in zip(spots, labels, strict=True):
        boxes = {}
        for place, (side, level) in PLACES.items():
            width = LABEL_WIDTH * len(label)
            left, low = x + side * (width + 0.025) - width / 2, y + level * GAP - LABEL_HEIGHT / 2
            boxes[place] = (left, low, left + width, low + LABEL_HEIGHT)
        costs = {place: sum(overlap(box, other) for other in taken) for place, box in boxes.items()}
        best = min(costs, key=lambda place: costs[place])
        chosen.append(best)
        taken.append(boxes[best])
    return chosen


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """The area that two boxes (left, low, right, high) share."""
    across = min(one[2], other[2]) - max(one[0], other[0])
    along = min(one[3], other[3]) - max(one[1], other[1])
    return max(across, 0.0) * max(along, 0.0)


def _front(points: list[tuple[float, float]]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [price for price, _ in points],
        "y": [score for _, score in points],
        "line": {"color": "--line-strong", "width": 1.5, "dash": "dot"},
        "hoverinfo": "skip",
        "meta": {},
    }


def _view(label: str, traces: list[dict[str, Any]], x: str, y: str) -> dict[str, Any]:
    return {"label": label, "traces": traces, "x": x, "y": y}
