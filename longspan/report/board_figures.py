"""Figures of runs: learning curves, and scores against what they cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from longspan.analysis.convergence import MeanCurve, mean_curves
from longspan.analysis.tradeoff import front
from longspan.core.printable import shown
from longspan.report.look import Look
from longspan.report.marks import Axis, BandMark, Figure, FigureView, LineMark, Mark, PointsMark, ReferenceMark
from longspan.results.board_table import unit_of
from longspan.results.board_types import Board, Row
from longspan.results.card import Card

METRICS = {"mse": "MSE", "mae": "MAE", "mcd": "MCD", "cd_l1": "CD-ℓ1", "psnr": "PSNR", "ssim": "SSIM"}


def metric_name(metric: str) -> str:
    """A metric as it is written in a paper.

    >>> metric_name("cd_l1"), metric_name("mcd_loss")
    ('CD-ℓ1', 'MCD loss')
    """
    return METRICS.get(metric) or " ".join(METRICS.get(word, word) for word in metric.split("_"))


def learning(cards: Sequence[Card], look: Mapping[str, Look]) -> Figure | None:
    """Curves of one task: the mean over seeds, with the range over seeds as a band. None where nothing was recorded."""
    score = next((card["score"] for card in cards if card["score"]), {"name": "accuracy", "chance": None})
    name, percent = score["name"], score.get("unit", "percent") == "percent"
    if not mean_curves(cards, f"valid_{name}") and "selected_by" in score:  # validation used another metric
        name, percent, score = score["selected_by"], False, {"chance": None}
    metric, scale = metric_name(name), 100.0 if percent else 1.0
    word = metric[:1].upper() + metric[1:]
    given = [card["score"]["chance"] for card in cards if card["score"] and "name" in score]
    # The chance level is that of the test set; only that of a rate holds in validation too.
    chance = next((level for level in given if level), None) if percent else None
    level = [] if chance is None else [ReferenceMark("y", scale * chance, "chance")]
    scores, y = mean_curves(cards, f"valid_{name}"), Axis(f"validation {metric}{', %' if percent else ''}")
    steps, seconds = Axis("step", from_zero=True), Axis("seconds of training", from_zero=True)
    timed = [curve for curve in scores if None not in curve.seconds]
    losses = [] if name == "loss" else mean_curves(cards, "valid_loss")
    views = [
        FigureView(
            label,
            [*(mark for curve in curves for mark in _curve(curve, look, x is seconds, factor)), *lines],
            x,
            y,
            compare=True,
        )
        for label, curves, x, y, factor, lines in (
            (f"{word} by step", scores, steps, y, scale, level),
            (f"{word} by time", timed, seconds, y, scale, level),
            ("Loss by step", losses, steps, Axis("validation loss"), 1.0, []),
        )
        if curves
    ]
    return Figure(views) if views else None


def _curve(curve: MeanCurve, look: Mapping[str, Look], by_time: bool, scale: float) -> list[Mark]:
    own, group = look[shown(curve.mechanism)], shown(curve.mechanism)
    x = curve.seconds if by_time else curve.steps
    mean, low, high = ([scale * value for value in values] for values in (curve.mean, curve.low, curve.high))
    style: dict[str, Any] = own.line if len(x) < 3 else own.line | {"symbol": ""}
    hover = [f"{value:.2f}" for value in mean]
    line = LineMark(x=x, y=mean, name=curve.title, group=group, hover=hover, **style)
    band = BandMark(x=x, low=low, high=high, colour=own.colour, group=group)
    return [line] if curve.seeds < 2 else [band, line]


def cost(view: Board, task: str | None, look: Mapping[str, Look]) -> Figure | None:
    """Score against speed and against parameters for one task, or for the first average when `task` is None."""
    views = []
    percent = unit_of(view, task or (view.suite.averages[0].name if view.suite.averages else None)) == "percent"
    y = Axis(
        "compositional index"
        if view.suite.measures
        else f"test {metric_name(view.suite.metric)}{', %' if percent else ''}"
    )
    higher = bool(view.suite.measures) or view.suite.higher_is_better
    for label, attribute, cheap_is_less, title in (
        ("Against speed", "steps_per_second", False, "training steps per second"),
        ("Against size", "parameters", True, "parameters"),
    ):
        points = [
            (row, price, (100.0 if percent else 1.0) * score)
            for row in (*view.rows, *view.free)
            if (price := getattr(row if task is None else row.cells[task], attribute)) is not None
            and (score := _score(view, row, task)) is not None
        ]
        if points:
            pairs = [(price, score) for _, price, score in points]
            best = front(pairs, cheaper_is_less=cheap_is_less, higher_is_better=higher)
            marks = [_point(row, task, price, score, look[row.mechanism], percent) for row, price, score in points]
            views.append(FigureView(label, [front_line([pairs[i] for i in best]), *marks], Axis(title), y))
    return Figure(views) if views else None


def front_line(points: Sequence[tuple[float, float]]) -> LineMark:
    """A line through the points that no other beats in both score and cost."""
    return LineMark(x=[x for x, _ in points], y=[y for _, y in points], dash="dot", width=1.5)


def _score(view: Board, row: Row, task: str | None) -> float | None:
    if task is None:
        return row.averages[view.suite.averages[0].name].value if view.suite.averages else None
    cell = row.cells[task]
    return cell.value if cell.status == "ok" else None


def _point(row: Row, task: str | None, price: float, score: float, look: Look, percent: bool) -> PointsMark:
    ends = row.cells[task].interval if task else None
    scale = 100 if percent else 1
    interval = None if ends is None else (scale * ends[0], scale * ends[1])
    hover = [f"{score:.2f} % at {price:,.4g}" if percent else f"{score:.4g} at {price:,.4g}"]
    named = {"labels": [row.title], "name": row.title, "group": row.mechanism}
    return PointsMark(
        x=[price], y=[score], size=11, outline=True, interval=interval, hover=hover, **named, **look.point
    )
