"""Paper figures of the questions: a PDF and a PNG each, drawn with matplotlib in the colours of the site.

draw(finding, Path("figures"))      # figures/tradeoff.pdf, figures/tradeoff.png
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from longspan.analysis.convergence import LEVELS, Milestones
from longspan.analysis.crossover import Comparison
from longspan.analysis.embeddings import Similarity
from longspan.analysis.extrapolation import Curve
from longspan.analysis.finding import Finding
from longspan.analysis.gap import TrainTestGap
from longspan.analysis.growth import Curves, LengthCurve
from longspan.analysis.rollout import Gallery
from longspan.analysis.roofline import Roof
from longspan.analysis.scaling import Growth
from longspan.analysis.span import Bar
from longspan.analysis.tradeoff import Panel, Point
from longspan.analysis.transfer import Transfer
from longspan.core.atomic import storage_errors, temporary_beside
from longspan.core.errors import LongspanError
from longspan.report.lab import MARKS, ceiling_of, length_ticks, mark_at, value_ticks
from longspan.report.plots import INKS, Look, looks, overlap
from longspan.report.questions import mechanisms, tiles
from longspan.results.board import shown

WIDTH = 6.75  # inches: the text width of most conference styles
QUIET, LINE = "#5f656e", "#a9adb3"
FIRST, SECOND = INKS[2], INKS[1]  # the two ends of a dumbbell, as on the site
MAPS = "cividis"  # even in lightness and for colour-blind readers
DPI = 300
MARKERS = {"circle": "o", "diamond": "D", "square": "s", "triangle-up": "^", "cross": "P", "star": "*"}
SMALL = {"color": QUIET, "fontsize": 7}
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.labelcolor": QUIET,
    "axes.edgecolor": LINE,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e5e5e0",
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "ytick.color": INKS[0],
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "pdf.fonttype": 42,
    "text.parse_math": False,  # names of mechanisms are text, whatever they contain
}


class FigureError(LongspanError):
    """A figure cannot be drawn on this machine."""


def draw(finding: Finding, folder: Path) -> list[Path]:
    """The finding as `<question>.pdf` and `<question>.png` in the folder; nothing where there is nothing to draw."""
    if not finding.figure:
        return []
    with _canvas() as pyplot:
        figure = DRAWN[finding.question](pyplot, finding.figure, looks(mechanisms([finding])))
        if figure is None:
            return []
        paths = [folder / f"{finding.question}.{suffix}" for suffix in ("pdf", "png")]
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            with temporary_beside(path) as part:
                made = {"CreationDate": None} if path.suffix == ".pdf" else None  # the same cards, the same bytes
                figure.savefig(part, format=path.suffix[1:], dpi=DPI, bbox_inches="tight", metadata=made)
        pyplot.close(figure)
    return paths


@contextmanager
def _canvas() -> Iterator[Any]:
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise FigureError(
            "Paper figures are drawn with matplotlib, which is not installed; run `pip install matplotlib`."
        ) from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    with pyplot.rc_context(STYLE):
        yield pyplot


# ---------------------------------------------------------------------------------------------------------- one by one


def _tradeoff(pyplot: Any, panels: Sequence[Panel], look: Mapping[str, Look]) -> Any:
    """Left: speed, the area is memory. Right: memory, the area is speed. A line of two for each set of scores."""
    figure, grid = pyplot.subplots(
        len(panels), 2, figsize=(WIDTH, 2.9 * len(panels)), squeeze=False, layout="constrained"
    )
    for (left, right), panel in zip(grid, panels, strict=True):
        _bubbles(left, panel, look, panel.by_speed, "speed", "memory_gb")
        _bubbles(right, panel, look, panel.by_memory, "memory_gb", "speed")
        left.set_title(panel.label)
        left.set_xlabel(f"training steps per second at {panel.length:,} tokens (area: memory)")
        right.set_xlabel(f"peak memory in GB at {panel.length:,} tokens (area: speed)")
        left.set_ylabel("average score, %")
    figure.draw_without_rendering()
    for (left, right), panel in zip(grid, panels, strict=True):
        label_bubbles(left, panel.points, "speed", "memory_gb")
        label_bubbles(right, panel.points, "memory_gb", "speed")
    return figure


def _bubbles(axes: Any, panel: Panel, look: Mapping[str, Look], best: Sequence[int], price: str, area: str) -> None:
    points = [point for point in panel.points if getattr(point, price) is not None]
    if not points:
        axes.set_axis_off()
        return
    sizes = _areas(points, area)
    line = [(getattr(panel.points[i], price), 100 * panel.points[i].score) for i in best]
    axes.plot(*zip(*line, strict=True), color=LINE, linestyle=":", linewidth=1.2, zorder=1)
    for point, size in sorted(zip(points, sizes, strict=True), key=lambda pair: -pair[1]):  # small ones on top
        own = look[shown(point.mechanism)]
        place = (getattr(point, price), 100 * point.score)
        dress = {"color": own.ink, "marker": MARKERS[own.symbol], "edgecolors": "white", "linewidths": 0.8}
        axes.scatter(*place, s=size, alpha=0.8, zorder=2, **dress)
    axes.grid(visible=True)
    axes.margins(x=0.16, y=0.16)


def _areas(points: Sequence[Point], area: str) -> list[float]:
    """In square points, from that of a small dot up."""
    largest = max((getattr(point, area) or 0.0 for point in points), default=0.0) or 1.0
    return [22 + 230 * (getattr(point, area) or 0.0) / largest for point in points]


AROUND = [(1, 0), (-1, 0), (0, 1), (0, -1), (0.8, 0.8), (-0.8, 0.8), (0.8, -0.8), (-0.8, -0.8)]


def label_bubbles(axes: Any, points: Sequence[Point], price: str, area: str) -> list[Any]:
    """A name beside every bubble, at the freest of eight places or further away, with a line back to its bubble."""
    from matplotlib import patheffects

    halo = [patheffects.withStroke(linewidth=2, foreground="white")]
    sized = [point for point in points if getattr(point, price) is not None]
    scale = axes.figure.dpi / 72  # pixels to a point
    centres = [axes.transData.transform((getattr(point, price), 100 * point.score)) for point in sized]
    radii = [(size / 3.1416) ** 0.5 * scale for size in _areas(sized, area)]
    frame = axes.get_window_extent()
    taken = [(x - r, y - r, x + r, y + r) for (x, y), r in zip(centres, radii, strict=True)]
    labels = []
    for point, (x, y), radius in zip(sized, centres, radii, strict=True):
        label = axes.text(0, 0, shown(point.title), fontsize=7, color=INKS[0], ha="center", va="center", zorder=4)
        label.set_path_effects(halo)
        extent = label.get_window_extent()
        half_wide, half_high = extent.width / 2, extent.height / 2
        boxes = []
        for away in (1.0, 3.0, 6.0, 9.0):
            for across, along in AROUND:
                middle_x = x + across * (radius + 2.5 * away * scale + half_wide)
                middle_y = y + along * (radius + 2.5 * away * scale + half_high)
                box = (middle_x - half_wide, middle_y - half_high, middle_x + half_wide, middle_y + half_high)
                boxes.append((_crowding(box, taken, frame) + 3.0 * away, box, (middle_x, middle_y), away))
        _, box, middle, away = min(boxes, key=lambda found: found[0])
        into = axes.transData.inverted().transform
        label.set_position(into(middle))
        if away > 1.0:
            edge = (min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3]))  # of the label, nearest to the bubble
            axes.plot(*zip(into((x, y)), into(edge), strict=True), color=QUIET, linewidth=0.6, zorder=3)
        taken.append(box)
        labels.append(label)
    return labels


def _crowding(box: tuple[float, ...], taken: Sequence[tuple[float, ...]], frame: Any) -> float:
    """Square pixels a box shares with others, and much more for what leaves the axes."""
    beyond = (frame.x0 - box[0], box[2] - frame.x1, frame.y0 - box[1], box[3] - frame.y1)
    return sum(overlap(box, other) for other in taken) + 100 * sum(max(distance, 0.0) for distance in beyond)


def _span(pyplot: Any, bars: Sequence[Bar], look: Mapping[str, Look]) -> Any:
    rules = list(dict.fromkeys(bar.rules for bar in bars))
    figure, grid = _stacked(pyplot, [sum(bar.rules == one for bar in bars) for one in rules])
    for axes, one in zip(grid, rules, strict=True):
        own = [bar for bar in bars if bar.rules == one]
        places = range(len(own))
        axes.barh(places, [bar.span for bar in own], color=[look[shown(bar.mechanism)].ink for bar in own], height=0.62)
        errors = [(place, bar) for place, bar in zip(places, own, strict=True) if bar.spread is not None]
        for place, bar in errors:
            axes.errorbar(bar.span, place, xerr=bar.spread, color=QUIET, linewidth=1, capsize=2)
        uniform = [bar.uniform for bar in own]
        _ticks(axes, uniform, "uniform attention")
        reach = max(max(bar.span, bar.uniform) for bar in own)
        for place, bar in zip(places, own, strict=True):
            end = bar.span + (bar.spread or 0.0)
            end = bar.uniform if end < bar.uniform < end + 0.08 * reach else end  # not across the tick
            axes.annotate(f"{bar.span:,.0f}", (end, place), (5, 0), textcoords="offset points", va="center", **SMALL)
        _named_rows(axes, [f"{bar.task} · {bar.title}" for bar in own], one)
        axes.margins(x=0.12)
        axes.set_xlim(left=0)
        axes.set_xlabel("tokens between a query and what it attends to")
    return _legend(figure, grid[0])


def _gap(pyplot: Any, pairs: Sequence[TrainTestGap], look: Mapping[str, Look]) -> Any:
    groups = list(dict.fromkeys((pair.task, pair.origin) for pair in pairs))
    ordered = {
        group: sorted((p for p in pairs if (p.task, p.origin) == group), key=lambda pair: pair.gap) for group in groups
    }
    figure, grid = _stacked(pyplot, [len(own) for own in ordered.values()])
    for axes, ((task, origin), own) in zip(grid, ordered.items(), strict=True):
        ends = (("train", [100 * pair.train for pair in own]), ("test", [100 * pair.test for pair in own]))
        _dumbbells(axes, [pair.title for pair in own], ends, f"{task}, {origin}", "accuracy, %")
        axes.set_xlim(0, 100)
    return _legend(figure, grid[0])


def _convergence(pyplot: Any, found: Sequence[Milestones], look: Mapping[str, Look]) -> Any:
    reached = [one for one in found if None not in one.steps]
    origins = list(dict.fromkeys(one.origin for one in reached))
    figure, grid = _stacked(pyplot, [sum(one.origin == origin for one in reached) for origin in origins])
    for axes, origin in zip(grid, origins, strict=True):
        own = sorted((one for one in reached if one.origin == origin), key=lambda one: one.steps[0] or 0.0)
        ends = [(f"{100 * level:.0f} %", [float(one.steps[i] or 0) for one in own]) for i, level in enumerate(LEVELS)]
        _dumbbells(axes, [one.title for one in own], ends, origin, "training steps to this validation accuracy")
    return _legend(figure, grid[0])


def _transfer(pyplot: Any, found: Sequence[Transfer], look: Mapping[str, Look]) -> Any:
    rules = list(dict.fromkeys(one.rules for one in found))
    figure, grid = _stacked(pyplot, [sum(one.rules == name for one in found) for name in rules])
    for axes, name in zip(grid, rules, strict=True):
        own = [one for one in found if one.rules == name]
        ends = (("Pathfinder", [100 * one.before for one in own]), ("Path-X", [100 * one.after for one in own]))
        chance = [100 * one.chance for one in own]
        _ticks(axes, chance, "chance on Path-X")
        _dumbbells(axes, [f"{one.title}, seed {one.seed}" for one in own], ends, name, "test accuracy, %")
        axes.set_xlim(0, 100)
    return _legend(figure, grid[0])


def _extrapolation(pyplot: Any, curves: Sequence[Curve], look: Mapping[str, Look]) -> Any:
    """Perplexity over the length of a block, both on logarithmic axes; a line marks the length of training."""
    rules = list(dict.fromkeys(curve.rules for curve in curves))
    figure, grid = pyplot.subplots(
        len(rules), 1, figsize=(WIDTH, 2.6 * len(rules)), squeeze=False, layout="constrained"
    )
    for axes, name in zip(grid[:, 0], rules, strict=True):
        own = [curve for curve in curves if curve.rules == name]
        for curve in own:
            dress = look[shown(curve.mechanism)]
            points = [p for p in zip(curve.lengths, curve.perplexities, strict=True) if p[1] is not None]
            style = {"color": dress.ink, "marker": MARKERS[dress.symbol], "markersize": 4, "linewidth": 1.4}
            axes.plot(*zip(*points, strict=True), label=shown(curve.title), **style) if points else None
        for trained in {curve.trained for curve in own}:
            axes.axvline(trained, color=LINE, linestyle=":", linewidth=1.2, zorder=1)
        ticks = sorted({length for curve in own for length in curve.lengths})
        axes.set(xscale="log", yscale="log", xlabel="tokens of a block (dotted: in training)", ylabel="test perplexity")
        crowded = {tick for tick, after in itertools.pairwise(ticks) if after < 1.4 * tick}
        axes.set_xticks(ticks, ["" if tick in crowded else f"{tick:,}" for tick in ticks])
        levels = _levels([value for curve in own for value in curve.perplexities if value is not None])
        axes.set_yticks(levels, [f"{level:g}" for level in levels])
        axes.minorticks_off()
        axes.grid(visible=True)
        axes.set_title(shown(name))
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _levels(values: Sequence[float], count: int = 5) -> list[float]:
    """A few round numbers at equal ratios, for a logarithmic axis that may not hold a power of ten."""
    low, high = min(values, default=1.0), max(values, default=10.0)
    steps = [low * (high / low) ** (i / (count - 1)) for i in range(count)]
    return sorted({float(f"{step:.2g}") for step in steps})


def _rollout(pyplot: Any, galleries: Sequence[Gallery], look: Mapping[str, Look]) -> Any:
    import numpy as np

    columns = max(len(gallery.examples) for gallery in galleries)
    if not columns:
        return None
    height = (2.05 * WIDTH / max(columns, 4) + 0.7) * len(galleries)
    figure = pyplot.figure(figsize=(WIDTH, height), layout="constrained")
    parts = figure.subfigures(len(galleries), 1, squeeze=False)[:, 0]
    for part, gallery in zip(parts, galleries, strict=True):
        who = f"{gallery.title} on {gallery.task}, {gallery.rules}, seed {gallery.seed}\n{gallery.query}"
        part.suptitle(who, fontsize=8, x=0.01, ha="left", linespacing=1.4)
        grid = part.subplots(2, columns, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for column, example in enumerate(gallery.examples):
            grid[0, column].imshow(example["image"], cmap="gray", interpolation="nearest")
            bright = np.percentile(example["map"], 99)  # a single pixel must not darken all others
            grid[1, column].imshow(example["map"], cmap=MAPS, interpolation="nearest", vmin=0, vmax=bright)
            right = example["label"] == example["prediction"]
            title = f"label {example['label']}" + ("" if right else f", said {example['prediction']}")
            grid[0, column].set_title(title, fontsize=7, color=INKS[0] if right else INKS[2], loc="center")
    return figure


def _embeddings(pyplot: Any, found: Sequence[Similarity], look: Mapping[str, Look]) -> Any:
    drawn = [
        (one, one.intensity, one.position) for one in found if one.intensity is not None and one.position is not None
    ]
    if not drawn:
        return None
    figure = pyplot.figure(figsize=(WIDTH, 2.9 * len(drawn)), layout="constrained")
    parts = figure.subfigures(len(drawn), 1, squeeze=False)[:, 0]
    for part, (one, intensity, position) in zip(parts, drawn, strict=True):
        part.suptitle(
            shown(f"{one.title} on {one.task}, {one.rules}, seed {one.seed}"), fontsize=8.5, x=0.01, ha="left"
        )
        left, right = part.subplots(1, 2)
        gap = 2
        _cosines(part, left, intensity, intensity)
        left.set(xlabel="intensity", ylabel="intensity")
        _cosines(part, right, tiles(position, one.side, gap=gap), position)
        every = list(range(0, one.side, max(1, one.side // 8)))
        middles = [place * (one.side + gap) + one.side / 2 for place in every]
        right.set(xlabel="column of the pixel", ylabel="row of the pixel")
        right.set_xticks(middles, every)
        right.set_yticks(middles, every)
    return figure


def _cosines(part: Any, axes: Any, image: Any, matrix: Any) -> None:
    """An image of cosines, coloured by what lies off the diagonal of their matrix: everything is 1 with itself."""
    import numpy as np

    off = matrix[~np.eye(len(matrix), dtype=bool)]
    low, high = np.percentile(off, [0.5, 99.5])
    drawn = axes.imshow(image, cmap=MAPS, vmin=low, vmax=high)
    bar = part.colorbar(drawn, ax=axes, label="cosine", extend="both", fraction=0.045, pad=0.02)
    bar.outline.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _curves(pyplot: Any, found: Sequence[Curves], look: Mapping[str, Look]) -> Any:
    """A row for each bench and mode, its quantities side by side; time once, in the first variant that has it."""
    kinds: dict[tuple[str, str, str], dict[str, Curves]] = {}
    for one in found:
        kinds.setdefault((one.where, one.pattern, one.mode), {}).setdefault(one.label, one)
    labels = list(dict.fromkeys(label for own in kinds.values() for label in own))
    figure, grid = _panes(pyplot, len(kinds), len(labels), found)
    for line, ((where, pattern, mode), own) in zip(grid, kinds.items(), strict=True):
        for axes, label in zip(line, labels, strict=True):
            if label not in own:
                axes.set_axis_off()
                continue
            for curve in own[label].lines:
                _plot(axes, curve, look)
            lengths = length_ticks(x for curve in own[label].lines for x in curve.x)
            _logarithmic(axes, lengths, value_ticks(own[label].lines, "y"))
            variant = own[label].variant
            axes.set(xlabel="tokens", ylabel=f"{label} ({variant})" if variant else label)
        line[0].set_title(f"{shown(where)}\n{shown(pattern)}, {mode}", fontsize=7)
    return _named_lines(figure, grid)


def _roofline(pyplot: Any, roofs: Sequence[Roof], look: Mapping[str, Look]) -> Any:
    figure, grid = _panes(pyplot, (len(roofs) + 1) // 2, 2, roofs)
    for axes in grid.flat[len(roofs) :]:
        axes.set_axis_off()
    for axes, roof in zip(grid.flat, roofs, strict=False):
        for line in roof.lines:
            _plot(axes, line, look)
        if (ceiling := ceiling_of(roof)) is not None:
            axes.plot(ceiling.x, ceiling.y, color=LINE, linewidth=2)
        _logarithmic(axes, value_ticks(roof.lines, "x"), value_ticks(roof.lines, "y"))
        axes.set(xlabel="operations per byte that must move", ylabel="TFLOP/s reached")
        axes.set_title(shown(f"{roof.pattern}, {roof.mode}, {roof.variant}"), fontsize=7)
    benches = dict.fromkeys(shown(roof.where) for roof in roofs)
    figure.suptitle("\n".join(benches), fontsize=7.5, x=0.01, ha="left")
    return _named_lines(figure, grid)


def _crossover(pyplot: Any, found: Sequence[Comparison], look: Mapping[str, Look]) -> Any:
    """One quantity against one baseline, the first of each: all of them are on the site."""
    quantity, baseline = found[0].quantity, found[0].baseline
    drawn = [one for one in found if (one.quantity, one.baseline) == (quantity, baseline)]
    drawn = [one for one in drawn if one.crossing.status in MARKS]
    kinds = list(dict.fromkeys((one.where, one.pattern, one.mode) for one in drawn))
    if not kinds:
        return None
    groups = [[one for one in drawn if (one.where, one.pattern, one.mode) == kind] for kind in kinds]
    figure, grid = _stacked(pyplot, [len(own) for own in groups])
    colours = {"crosses": INKS[1], "between": INKS[1], "below": INKS[3], "above": INKS[2]}
    markers = {"crosses": "o", "between": "D", "below": "<", "above": ">"}
    named = set()
    for axes, kind, own in zip(grid, kinds, groups, strict=True):
        for place, one in enumerate(own):
            status = one.crossing.status
            low, high = one.crossing.interval or (None, None)
            if status in ("crosses", "between") and one.crossing.interval:
                axes.hlines(place, low or one.lengths[0], high or one.lengths[-1], color=LINE, linewidth=3, zorder=1)
            dress = {"color": colours[status], "marker": markers[status], "zorder": 2}
            label = None if status in named else MARKS[status][0]
            axes.scatter(mark_at(one), place, s=22, label=label, **dress)
            named.add(status)
        where, pattern, mode = kind
        words = " · ".join(word for word in (where, pattern, f"{mode} {quantity} against {baseline}".strip()) if word)
        _named_rows(axes, [one.title for one in own], words)
        ticks = length_ticks(float(length) for one in own for length in one.lengths)
        axes.set(xscale="log", xlabel="efficiency length, tokens")
        axes.set_xticks(ticks["tickvals"], ticks["ticktext"])
        axes.minorticks_off()
    handles = [pair for axes in grid for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    figure.legend(*zip(*handles, strict=True), loc="outside lower right", ncols=3, handletextpad=0.2)
    return figure


def _scaling(pyplot: Any, found: Sequence[Growth], look: Mapping[str, Look]) -> Any:
    kinds = list(dict.fromkeys((one.where, one.pattern, one.mode) for one in found))
    groups = [[one for one in found if (one.where, one.pattern, one.mode) == kind] for kind in kinds]
    figure, grid = _stacked(pyplot, [len(own) for own in groups])
    for axes, kind, own in zip(grid, kinds, groups, strict=True):
        own = sorted(own, key=lambda one: one.time.exponent if one.time else 0.0)
        for name, colour, marker in (("time", SECOND, "o"), ("memory", FIRST, "D")):
            slopes = [(getattr(one, name).exponent, place) for place, one in enumerate(own) if getattr(one, name)]
            if slopes:
                axes.scatter(*zip(*slopes, strict=True), color=colour, marker=marker, s=22, label=name, zorder=2)
        limits = [(one.limit, place) for place, one in enumerate(own) if one.limit]
        if limits:
            axes.scatter(*zip(*limits, strict=True), marker="|", s=80, color=INKS[0], label="allowed", zorder=3)
        _named_rows(axes, [one.title for one in own], " · ".join(kind))
        axes.set_xlabel("exponent of the length")
    return _legend(figure, grid[0])


DRAWN: dict[str, Callable[[Any, Any, Mapping[str, Look]], Any]] = {
    "tradeoff": _tradeoff,
    "span": _span,
    "gap": _gap,
    "convergence": _convergence,
    "transfer": _transfer,
    "extrapolation": _extrapolation,
    "rollout": _rollout,
    "embeddings": _embeddings,
    "growth": _curves,
    "decode": _curves,
    "roofline": _roofline,
    "crossover": _crossover,
    "scaling": _scaling,
}


# ----------------------------------------------------------------------------------------------------- parts of figures


def _stacked(pyplot: Any, rows: Sequence[int]) -> tuple[Any, Sequence[Any]]:
    """Axes one below the other, each as high as it has rows."""
    heights = [0.75 + 0.2 * count for count in rows]
    figure, grid = pyplot.subplots(
        len(rows), 1, figsize=(WIDTH, sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    return figure, grid[:, 0]


NAMES = 4  # in a line of a legend of lines


def _panes(pyplot: Any, rows: int, columns: int, found: Sequence[Curves] | Sequence[Roof]) -> tuple[Any, Any]:
    """Axes side by side, with room below for a legend of all lines."""
    names = len({line.mechanism for one in found for line in one.lines})
    size = (WIDTH * max(1.0, columns / 2.5), 2.7 * rows + 0.17 * math.ceil(names / NAMES))
    return pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")


STROKES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}


def _plot(axes: Any, line: LengthCurve, look: Mapping[str, Look]) -> None:
    own = look[shown(line.mechanism)]
    dress = {"color": own.ink, "linestyle": STROKES[own.dash], "marker": MARKERS[own.symbol], "markersize": 2.6}
    axes.plot(line.x, line.y, linewidth=1.0 if own.hue else 1.8, label=shown(line.title), **dress)


def _logarithmic(axes: Any, x: Mapping[str, Any], y: Mapping[str, Any]) -> None:
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(x["tickvals"], x["ticktext"])
    axes.set_yticks(y["tickvals"], y["ticktext"])
    axes.minorticks_off()
    axes.grid(visible=True)


def _named_lines(figure: Any, grid: Any) -> Any:
    """One legend for the lines of all axes, below them."""
    found: dict[str, Any] = {}
    for axes in grid.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(list(found.values()), list(found), loc="outside lower left", ncols=NAMES, handlelength=2.6)
    return figure


def _dumbbells(
    axes: Any, labels: Sequence[str], ends: Sequence[tuple[str, Sequence[float]]], title: str, x: str
) -> None:
    (first, starts), (second, stops) = ends
    places = range(len(labels))
    axes.hlines(places, starts, stops, color=LINE, linewidth=1.6, zorder=1)
    axes.scatter(starts, places, color=FIRST, marker="D", s=24, label=first, zorder=2, clip_on=False)
    axes.scatter(stops, places, color=SECOND, marker="o", s=30, label=second, zorder=2, clip_on=False)
    _named_rows(axes, labels, title)
    axes.set_xlim(left=0)
    axes.set_xlabel(x)


def _legend(figure: Any, axes: Any) -> Any:
    """One legend for all axes, below them."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower right", ncols=3, handletextpad=0.2)
    return figure


def _ticks(axes: Any, values: Sequence[float], label: str) -> None:
    """Where a reference value lies in each row; the white border keeps it visible on a dark bar."""
    places = range(len(values))
    axes.scatter(values, places, marker="|", s=170, color="white", linewidths=3.4, zorder=3)
    axes.scatter(values, places, marker="|", s=150, color=INKS[0], linewidths=1.4, zorder=4, label=label)


def _named_rows(axes: Any, labels: Sequence[str], title: str) -> None:
    """A name for each row, the first at the top."""
    axes.set_yticks(range(len(labels)), [shown(label) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=True, axis="x")
    axes.set_title(shown(title))
