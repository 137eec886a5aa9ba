"""The figures of each question, described once for the site and for papers.

describe(finding, looks(...)) -> [Figure(...), ...], one for each bench and pattern where there are benches
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from longspan.analysis import LAB
from longspan.analysis.convergence import LEVELS, Milestones
from longspan.analysis.correlation import Grid
from longspan.analysis.embeddings import Similarity
from longspan.analysis.extrapolation import Curve
from longspan.analysis.finding import Finding
from longspan.analysis.front import Cost, CostFront
from longspan.analysis.gap import TrainTestGap
from longspan.analysis.own_index import IndexRow
from longspan.analysis.ranks import Ranking
from longspan.analysis.rollout import Gallery
from longspan.analysis.span import Bar
from longspan.analysis.tradeoff import Panel, Point, front
from longspan.analysis.transfer import Transfer
from longspan.core.printable import shown
from longspan.report import benchmark_figures, efficiency_figures
from longspan.report.benchmark_figures import grouped
from longspan.report.board_figures import front_line, metric_name
from longspan.report.efficiency_figures import row_points
from longspan.report.look import Look, looks
from longspan.report.marks import (
    Axis,
    BarMark,
    Figure,
    FigureView,
    ImageMark,
    LineMark,
    Mark,
    PointsMark,
    ReferenceMark,
    TextMark,
    Values,
)
from longspan.report.ticks import length_ticks, value_ticks

COLOURED = (
    "tradeoff",
    "front",
    "span",
    "text_lengths",
    "extrapolation",
    "growth",
    "relative",
    "decode",
    "roofline",
)  # each mechanism in its own colour
TILES = 8  # per side of the map of positions on the site; the paper shows all of them


def coloured_mechanisms(findings: Iterable[Finding]) -> list[str]:
    """The mechanisms that have a colour in the figures, for `looks`."""
    items = [item for finding in findings if finding.question in COLOURED for item in finding.figure or ()]
    parts = [getattr(item, "points", None) or getattr(item, "lines", None) or [item] for item in items]
    return [part.mechanism for own in parts for part in own]


def describe(finding: Finding, look: Mapping[str, Look] | None = None) -> list[Figure]:
    """Empty where there is nothing to draw."""
    items = finding.figure or ()
    if not items:
        return []
    look = look or looks(coloured_mechanisms([finding]))
    groups = _benches(items) if finding.question in LAB else [("", items)]
    figures = [Figure(VIEWS[finding.question](own, look), title) for title, own in groups]
    return [figure for figure in figures if figure.views]


def _benches(items: Iterable[Any]) -> list[tuple[str, list[Any]]]:
    """Items grouped by bench and pattern, under their names."""

    def bench(item: Any) -> str:
        return " · ".join(word for word in (item.where, item.pattern) if word)

    return [(key, list(group)) for key, group in groupby(sorted(items, key=bench), key=bench)]


# ---------------------------------------------------------------------------------------------------------------- views


def _tradeoff(panels: Sequence[Panel], look: Mapping[str, Look]) -> list[FigureView]:
    """Speed with memory as the area, then memory with speed as the area."""
    views = []
    for panel in panels:
        views.append(_bubbles(panel, look, panel.by_speed, "speed", "training steps per second", "memory_gb", "memory"))
        if any(point.memory_gb is not None for point in panel.points):
            views.append(_bubbles(panel, look, panel.by_memory, "memory_gb", "peak memory in GB", "speed", "speed"))
    return views


def _bubbles(
    panel: Panel, look: Mapping[str, Look], best: Sequence[int], price: str, title: str, area: str, area_name: str
) -> FigureView:
    points = [point for point in panel.points if getattr(point, price) is not None]
    largest = max((getattr(point, area) or 0.0 for point in points), default=0.0) or 1.0
    marks: list[Mark] = [front_line([(getattr(panel.points[i], price), 100 * panel.points[i].score) for i in best])]
    for point in sorted(points, key=lambda point: -(getattr(point, area) or 0.0)):  # small ones on top
        size = 9 + 27 * ((getattr(point, area) or 0.0) / largest) ** 0.5
        marks.append(_bubble(point, getattr(point, price), size, look[shown(point.mechanism)]))
    x = Axis(f"{title} at {panel.length:,} tokens (area: {area_name})")
    label = "speed" if price == "speed" else "memory"
    return FigureView(label, marks, x, Axis("average score, %"), heading=panel.label)


def _bubble(point: Point, x: float, size: float, look: Look) -> PointsMark:
    memory = "" if point.memory_gb is None else f", {point.memory_gb:.2f} GB"
    hover = [f"{100 * point.score:.2f} %, {point.speed:.1f} steps/s{memory}"]
    named = {"labels": [point.title], "name": point.title, "group": point.mechanism}
    return PointsMark(x=[x], y=[100 * point.score], size=size, outline=True, hover=hover, **named, **look.point)


def _front(fronts: Sequence[CostFront], look: Mapping[str, Look]) -> list[FigureView]:
    """Score against time, and against memory where it is known; each with the front of the two."""
    prices = (("time", "step_ms", "ms a training step"), ("memory", "memory_gib", "peak memory in GiB"))
    return [
        _costs(one, look, *price)
        for one in fronts
        for price in prices
        if sum(getattr(point, price[1]) is not None for point in one.points) > 1
    ]


def _costs(one: CostFront, look: Mapping[str, Look], label: str, price: str, title: str) -> FigureView:
    scale = 100.0 if one.percent else 1.0
    points = [(point, getattr(point, price), scale * point.score) for point in one.points]
    points = [found for found in points if found[1] is not None]
    pairs = [(x, y) for _, x, y in points]
    best = front(pairs, cheaper_is_less=True, higher_is_better=one.higher_is_better)
    marks: list[Mark] = [front_line([pairs[place] for place in best])]
    marks += [_cost_point(point, x, y, look[shown(point.mechanism)]) for point, x, y in points]
    better = "higher" if one.higher_is_better else "lower"
    y = Axis(f"test {metric_name(one.metric)}{', %' if one.percent else ''} ({better} is better)")
    return FigureView(label, marks, Axis(title), y, heading=one.label)


def _cost_point(point: Cost, x: float, y: float, look: Look) -> PointsMark:
    memory = "" if point.memory_gib is None else f", {point.memory_gib:.2f} GiB"
    named = {"labels": [point.title], "name": point.title, "group": point.mechanism}
    hover = [f"{y:.4g}, {point.step_ms:.3g} ms{memory}"]
    return PointsMark(x=[x], y=[y], outline=True, hover=hover, **named, **look.point)


def _span(bars: Sequence[Bar], look: Mapping[str, Look]) -> list[FigureView]:
    """Bars from the top down as in the table, and a tick where uniform attention would end."""
    views = []
    for rules, own in grouped(bars, lambda bar: bar.rules):
        reach = max(max(bar.span, bar.uniform) for bar in own)
        marks: list[Mark] = []
        for row, bar in enumerate(own):
            hover = f"{bar.span:.1f} tokens of {bar.length:.0f}, by {bar.source}"
            colour = look[shown(bar.mechanism)].colour
            marks.append(BarMark(x=bar.span, y=row, colour=colour, spread=bar.spread, group=bar.mechanism, hover=hover))
            end = bar.span + (bar.spread or 0.0)
            end = bar.uniform if end < bar.uniform < end + 0.08 * reach else end  # the text must not cross the tick
            marks.append(TextMark(end, row, f"{bar.span:,.0f}"))
        marks += row_points("uniform attention", [bar.uniform for bar in own], "--ink", "line-ns-open", 24)
        x = Axis("tokens between a query and what it attends to", from_zero=True)
        views.append(FigureView(rules, marks, x, Axis(rows=[f"{bar.task} · {bar.title}" for bar in own])))
    return views


def _gap(pairs: Sequence[TrainTestGap], look: Mapping[str, Look]) -> list[FigureView]:
    views = []
    for label, own in grouped(pairs, lambda pair: f"{pair.task}, {pair.origin}"):
        own = sorted(own, key=lambda pair: pair.gap)
        ends = {"train": [100 * pair.train for pair in own], "test": [100 * pair.test for pair in own]}
        views.append(_dumbbells(label, [pair.title for pair in own], ends, "accuracy, %"))
    return views


def _convergence(found: Sequence[Milestones], look: Mapping[str, Look]) -> list[FigureView]:
    views = []
    for label, own in grouped([one for one in found if None not in one.steps], lambda one: one.origin):
        own = sorted(own, key=lambda one: one.steps[0] or 0.0)
        ends = {f"{100 * level:.0f} %": [one.steps[i] for one in own] for i, level in enumerate(LEVELS)}
        views.append(_dumbbells(label, [one.title for one in own], ends, "training steps to this validation accuracy"))
    return views


def _transfer(found: Sequence[Transfer], look: Mapping[str, Look]) -> list[FigureView]:
    views = []
    for label, own in grouped(found, lambda one: one.rules):
        ends = {"Pathfinder": [100 * one.before for one in own], "Path-X": [100 * one.after for one in own]}
        chance = row_points("chance on Path-X", [100 * one.chance for one in own], "--ink", "line-ns-open", 24)
        names = [f"{one.title}, seed {one.seed}" for one in own]
        views.append(_dumbbells(label, names, ends, "test accuracy, %", below=chance))
    return views


def _index(rows: Sequence[IndexRow], look: Mapping[str, Look]) -> list[FigureView]:
    """An index in each row, what was printed beside it, and a line over what it is with one task left out."""
    views = []
    for label, own in grouped(rows, lambda row: f"{row.pattern} · {row.origin} · {row.constants}"):
        ends = [[row.without(task) for task in row.tasks] if len(row.tasks) > 1 else [row.index] for row in own]
        without = LineMark(
            x=[value for scores in ends for value in (min(scores), max(scores), None)],
            y=[value for place in range(len(own)) for value in (place, place, None)],
            width=4.0,
            name="with one task left out",
        )
        marks: list[Mark] = [without]
        if seeded := [(place, row.interval) for place, row in enumerate(own) if row.interval]:
            x = [value for _, (low, high) in seeded for value in (low, high, None)]
            y = [value for place, _ in seeded for value in (place, place, None)]
            marks.append(LineMark(x=x, y=y, colour="--ink", width=1.5, name="95 % over seeds"))
        printed = [float(row.printed) if row.printed else None for row in own]
        marks += row_points("printed", printed, "--ink", "line-ns-open", 24)
        marks += row_points("all tasks", [row.index for row in own], "--hue-1")
        views.append(FigureView(label, marks, Axis("compositional index"), Axis(rows=[row.title for row in own])))
    return views


def _ranks(rankings: Sequence[Ranking], look: Mapping[str, Look]) -> list[FigureView]:
    """A critical-difference diagram: mean ranks, best first, then bars over those that do not differ significantly."""
    views = []
    for one in rankings:
        means, names = one.means, list(one.titles)
        ruler, place = [1, 1 + one.critical_difference], [len(names)] * 2
        marks: list[Mark] = [LineMark(x=ruler, y=place, colour="--ink", symbol="line-ns-open")]
        marks += row_points("mean rank", means, "--hue-1")
        names.append(f"critical difference {one.critical_difference:.2f}")
        for first, last in one.alike:
            marks.append(LineMark(x=[means[first], means[last]], y=[len(names)] * 2, width=6.0, name="not apart"))
            names.append("")
        label = f"{one.origin}, {len(one.tasks)} tasks, p = {one.p:.2g}"
        x = Axis("mean rank, 1 is the best", ticks={rank: str(rank) for rank in range(1, len(means) + 1)})
        views.append(FigureView(label, marks, x, Axis(rows=names)))
    return views


def _correlation(grids: Sequence[Grid], look: Mapping[str, Look]) -> list[FigureView]:
    """r of every pair with the number of mechanisms behind it, then the same as a paper shows it."""
    views = []
    for grid in grids:
        own = {
            place: (pair.r, f"{pair.r:.2f}\n({pair.methods})")
            for place, pair in grid.pairs.items()
            if pair.r is not None
        }
        views.append(_matrix(grid, own, grid.origin))
        if grid.figure:
            decoded = {place: (r, f"{r:.2f}") for place, r in grid.figure.items()}
            views.append(_matrix(grid, decoded, f"{grid.title}, decoded"))
    return views


def _matrix(grid: Grid, cells: Mapping[tuple[int, int], tuple[float, str]], label: str) -> FigureView:
    """Pairs below the diagonal."""
    count = len(grid.names)
    values, texts = np.full((count, count), np.nan), [[""] * count for _ in grid.names]
    for (i, j), (r, text) in cells.items():
        values[j, i], texts[j][i] = r, text
    image = ImageMark(values=values, colours="cividis", low=-1.0, high=1.0, bar="Pearson's r", cells=texts)
    ticks = {float(place): name for place, name in enumerate(grid.names)}
    return FigureView(label, [image], Axis(ticks=ticks), Axis(ticks=ticks), height=240 + 26 * count)


def _extrapolation(curves: Sequence[Curve], look: Mapping[str, Look]) -> list[FigureView]:
    """A line for each mechanism over the length of the blocks, one view for each set of rules."""
    views = []
    for label, own in grouped(curves, lambda curve: curve.rules):
        marks: list[Mark] = [_perplexities(curve, look[shown(curve.mechanism)]) for curve in own]
        marks += [
            ReferenceMark("x", trained, f"trained at {trained:,}") for trained in sorted({c.trained for c in own})
        ]
        x = Axis("tokens of a block", log=True, ticks=length_ticks(n for curve in own for n in curve.lengths))
        y = Axis("test perplexity", log=True, ticks=value_ticks(p for curve in own for p in curve.perplexities))
        views.append(FigureView(label, marks, x, y))
    return views


def _perplexities(curve: Curve, look: Look) -> LineMark:
    found = list(zip(curve.lengths, curve.perplexities, strict=True))
    hover = [f"{perplexity or 0:,.2f} at {length:,} tokens" for length, perplexity in found]
    named = {"name": curve.title, "group": curve.mechanism}
    return LineMark(x=curve.lengths, y=curve.perplexities, size=8, hover=hover, **named, **look.line)


def _rollout(galleries: Sequence[Gallery], look: Mapping[str, Look]) -> list[FigureView]:
    """Images above, their maps below."""
    views = []
    for gallery in galleries:
        marks = []
        for column, example in enumerate(gallery.examples):
            label, prediction = example["label"], example["prediction"]
            title = f"label {label}" if label == prediction else f"label {label}, said {prediction}"
            bright = float(np.percentile(example["map"], 99))  # a single pixel must not darken all others
            image = np.asarray(example["image"], dtype=float)
            low, high = float(image.min()), float(image.max())
            marks.append(ImageMark(values=image, colours="grey", title=title, column=column, low=low, high=high))
            marks.append(
                ImageMark(values=example["map"], colours="cividis", low=0.0, high=bright, row=1, column=column)
            )
        if marks:
            label = f"{gallery.title} on {gallery.task}, {gallery.rules}, seed {gallery.seed}"
            views.append(FigureView(label, marks, y=Axis(gallery.query), height=340))
    return views


def _embeddings(found: Sequence[Similarity], look: Mapping[str, Look]) -> list[FigureView]:
    views = []
    for one in found:
        who = f"{one.title} on {one.task}, {one.rules}, seed {one.seed}"
        if one.intensity is not None:
            image, axis = _cosines(one.intensity, one.intensity), Axis("intensity")
            views.append(FigureView("intensities", [image], axis, axis, height=540, heading=who))
        if one.position is not None:
            every = max(1, one.side // TILES)
            views.append(_positions(one, one.position, every, heading=who, medium="site"))
            views.append(_positions(one, one.position, 1, heading=who, medium="paper"))
    return views


def _positions(one: Similarity, position: np.ndarray, every: int, gap: int = 2, **how: Any) -> FigureView:
    """A tile for every `every`-th pixel: how similar the others are to it, each where it lies in the image."""
    width = one.side + gap
    pixels = range(0, one.side, max(1, one.side // TILES))
    ticks = {pixel // every * width + one.side / 2: str(pixel) for pixel in pixels}
    image = _cosines(tiles(position, one.side, every, gap), position)
    x, y = Axis("column of the pixel", ticks=ticks), Axis("row of the pixel", ticks=ticks)
    return FigureView("positions", [image], x, y, height=540, **how)


def _cosines(values: np.ndarray, matrix: np.ndarray) -> ImageMark:
    """Cosines; the colour scale is taken off the diagonal of their matrix, where every cosine is 1."""
    low, high = np.percentile(matrix[~np.eye(len(matrix), dtype=bool)], [0.5, 99.5])
    return ImageMark(values=values, colours="cividis", low=float(low), high=float(high), bar="cosine")


VIEWS: dict[str, Callable[[Any, Mapping[str, Look]], list[FigureView]]] = {
    "tradeoff": _tradeoff,
    "front": _front,
    "span": _span,
    "gap": _gap,
    "convergence": _convergence,
    "transfer": _transfer,
    "extrapolation": _extrapolation,
    "index": _index,
    "ranks": _ranks,
    "correlation": _correlation,
    "rollout": _rollout,
    "embeddings": _embeddings,
    **efficiency_figures.VIEWS,
    **benchmark_figures.VIEWS,
}


# ----------------------------------------------------------------------------------------------------- parts of figures


def _dumbbells(
    label: str, names: Sequence[str], ends: Mapping[str, Values], x: str, below: Sequence[Mark] = ()
) -> FigureView:
    """Two points and a line between them in each row."""
    (first, starts), (second, stops) = ends.items()
    between = LineMark(
        x=[value for pair in zip(starts, stops, strict=True) for value in (*pair, None)],
        y=[value for row in range(len(names)) for value in (row, row, None)],
    )
    points = [*row_points(first, starts, "--hue-2", "diamond"), *row_points(second, stops, "--hue-1")]
    return FigureView(label, [between, *below, *points], Axis(x, from_zero=True), Axis(rows=names))


def tiles(position: np.ndarray, side: int, every: int = 1, gap: int = 0) -> np.ndarray:
    """The map of every `every`-th pixel, put side by side where that pixel is; NaN between them, if a gap is wanted."""
    grid = position.reshape(side, side, side, side)[::every, ::every]
    count = grid.shape[0]
    padded = np.full((count, count, side + gap, side + gap), np.nan, dtype=np.float32)
    padded[:, :, :side, :side] = grid
    return padded.transpose(0, 2, 1, 3).reshape(count * (side + gap), count * (side + gap))
