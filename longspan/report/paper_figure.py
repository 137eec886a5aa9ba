"""Figures for papers: an answered question as PDF, PNG or SVG, drawn with matplotlib in the colours of the site.

draw(finding, Path("figures"))      # figures/tradeoff.pdf, figures/tradeoff.png
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from longspan.analysis.finding import Finding
from longspan.core.atomic import storage_errors, temporary_beside
from longspan.core.errors import LongspanError
from longspan.core.printable import shown
from longspan.report.labels import place_labels
from longspan.report.marks import (
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
    Values,
)
from longspan.report.question_figures import describe

ASSETS = Path(__file__).parent / "assets"
WIDTH = 6.75  # inches: the text width of most conference styles
PAGE = 8.5  # inches of a figure that is no higher than a page
DPI = 300
UNDATED = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}  # the same cards, the same bytes
LINE, SIZE = 0.6, 0.45  # points on paper per pixel of the site, for line widths and for markers
SHEET = (ASSETS / "site.css").read_text(encoding="utf-8")
COLOURS = dict(re.findall(r"(--[\w-]+): light-dark\((#[0-9a-f]{6}),", SHEET))  # those of the light theme
INK, QUIET = COLOURS["--ink"], COLOURS["--quiet"]
MAPS = {"grey": "gray", "cividis": "cividis"}
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
MARKERS = {"": "", "circle": "o", "diamond": "D", "square": "s", "triangle-up": "^", "cross": "P", "star": "*"}
MARKERS |= {"triangle-left": "<", "triangle-right": ">", "line-ns-open": "|"}


class FigureError(LongspanError):
    """A figure cannot be drawn on this machine."""


def draw(finding: Finding, folder: Path) -> list[Path]:
    """The finding as `<question>.pdf` and `<question>.png` in the folder; nothing where there is nothing to draw."""
    return save(describe(finding), folder, finding.question, ("pdf", "png"))


def save(figures: Sequence[Figure], folder: Path, name: str, forms: Sequence[str]) -> list[Path]:
    """The figures in one drawing, `<name>.<form>` for each form; nothing where there is nothing to draw."""
    if not figures:
        return []
    with canvas() as pyplot:
        drawn = render(pyplot, figures)
        paths = [folder / f"{name}.{form}" for form in forms]
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            with temporary_beside(path) as part:
                how = {"dpi": DPI, "bbox_inches": "tight", "metadata": UNDATED.get(path.suffix)}
                drawn.savefig(part, format=path.suffix[1:], **how)
        pyplot.close(drawn)
    return paths


def sheets(figures: Sequence[Figure]) -> list[Figure]:
    """The figures, with those that are higher than a page split."""
    made: list[Figure] = []
    for figure in figures:
        rows = _rows(figure)
        columns = max((len(row) for _, row in rows), default=1)
        left = 0.0
        for _, row in rows:
            height = max(_height(view, columns) for view in row)
            if height > left or not made or made[-1].title != figure.title:
                made.append(Figure([], figure.title))
                left = PAGE
            made[-1] = Figure([*made[-1].views, *row], figure.title)
            left -= height
    return made


@contextmanager
def canvas() -> Iterator[Any]:
    """matplotlib's pyplot in the style of these figures, drawing to files only."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise FigureError(
            "Paper figures are drawn with matplotlib, which is not installed; run `pip install matplotlib`."
        ) from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    with pyplot.style.context(str(ASSETS / "paper.mplstyle")):
        yield pyplot


def render(pyplot: Any, figures: Sequence[Figure]) -> Any:
    """All views in one grid, one legend below them."""
    rows = [row for figure in figures for row in _rows(figure)]
    columns = max(len(row) for _, row in rows)
    heights = [max(_height(view, columns) for view in row) + (0.12 if above else 0.0) for above, row in rows]
    names = {_legend_name(mark, view) for _, row in rows for view in row for mark in view.marks} - {""}
    width = WIDTH * max(1.0, columns / 2.5)
    abreast = max(1, int(width / (0.5 + 0.05 * max(map(len, names), default=1))))  # names in a line of the legend
    size = (width, sum(heights) + 0.17 * math.ceil(len(names) / abreast))
    drawn = pyplot.figure(figsize=size, layout="constrained")
    grid = drawn.add_gridspec(len(rows), columns, height_ratios=heights)
    labelled = []
    for line, (above, row) in enumerate(rows):
        for column, view in enumerate(row):
            if len(view.images) > 1:
                _draw_images(drawn.add_subfigure(grid[line, :]), view)
                continue
            axes = drawn.add_subplot(grid[line, column])
            axes.set_title(("\n" if above else "") + shown(view.label), linespacing=1.5)
            if column == 0:  # as wide as the row, so that the layout must not see it
                axes.annotate(shown(above), (0, 1), (0, 18), "axes fraction", "offset points").set_in_layout(False)
            draw_view(axes, view)
            labelled += [(axes, view)] if view.labelled else []
    _draw_legend(drawn, abreast)
    drawn.draw_without_rendering()  # places are known from here on
    for axes, view in labelled:
        label_points(axes, view)
    return drawn


def _rows(figure: Figure) -> list[tuple[str, list[FigureView]]]:
    """Views that stand side by side, each row with what is written above it: the first has the title of the figure."""
    views = [view for view in figure.views if view.medium != "site"]
    keyed = groupby(enumerate(views), key=lambda pair: pair[1].heading or pair[1].side or pair[0])
    rows = [[view for _, view in group] for _, group in keyed]
    return [(row[0].heading or (figure.title if place == 0 else ""), row) for place, row in enumerate(rows)]


def _height(view: FigureView, columns: int) -> float:
    """In inches."""
    if view.y.rows:
        return 0.75 + 0.2 * sum(view.y.heights or [1] * len(view.y.rows))
    if view.images and view.images[0].cells:
        return 1.4 + 0.32 * len(view.images[0].cells)
    if len(view.images) > 1:
        return 2.05 * WIDTH / max(1 + max(image.column for image in view.images), 4) + 0.7
    return 2.9 if columns <= 2 else 2.7


def _legend_name(mark: Mark, view: FigureView) -> str:
    return shown(mark.name) if isinstance(mark, LineMark | PointsMark) and not view.labelled else ""


# ------------------------------------------------------------------------------------------------------ views and marks


def draw_view(axes: Any, view: FigureView) -> None:
    for order, mark in enumerate(view.marks):
        _draw_mark(axes, mark, view, order + 1)
    axes.set(xlabel=shown(view.x.label), ylabel=shown(view.y.label))
    if view.images:
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        if view.images[0].cells:  # names of columns are longer than these are wide
            axes.tick_params(axis="x", rotation=90)
    else:
        axes.margins(x=0.16 if view.labelled else 0.06, y=0.16 if view.labelled else 0.05)
        axes.set(xscale="log" if view.x.log else "linear", yscale="log" if view.y.log else "linear")
        if view.y.heights:
            axes.set_yscale("function", functions=_by_height(view.y.heights))
        axes.minorticks_off()
        axes.grid(visible=True, axis="x" if view.y.rows else "both")
    for axis, spec in ((axes.xaxis, view.x), (axes.yaxis, view.y)):
        ticks = dict(enumerate(spec.rows)) if spec.rows else spec.ticks
        if ticks is not None:
            axis.set_ticks(list(ticks), [shown(text) for text in ticks.values()])
    if view.x.from_zero:
        axes.set_xlim(left=0)
    if view.y.rows:
        axes.set_ylim(len(view.y.rows) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)


def _by_height(heights: Sequence[float]) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """From row numbers to positions, for rows of different heights, and back."""
    ends = np.cumsum([0.0, *heights])
    numbers = np.arange(len(ends)) - 0.5
    return partial(np.interp, xp=numbers, fp=ends), partial(np.interp, xp=ends, fp=numbers)


def _draw_mark(axes: Any, mark: Mark, view: FigureView, order: int) -> None:
    label = _legend_name(mark, view) or None
    match mark:
        case LineMark():
            width, dash = LINE * mark.width, DASHES[mark.dash]
            marker = {"marker": MARKERS[mark.symbol], "markersize": SIZE * mark.size}
            drawn = {"color": COLOURS[mark.colour], "linewidth": width, "linestyle": dash, "label": label, **marker}
            axes.plot(_floats(mark.x), _floats(mark.y), zorder=order, **drawn)
        case PointsMark():
            _draw_points(axes, mark, label, order)
        case BandMark():
            colour = COLOURS[mark.colour]
            axes.fill_between(mark.x, mark.low, mark.high, color=colour, alpha=0.13, linewidth=0, zorder=order)
        case BarMark():
            axes.barh(mark.y, mark.x, color=COLOURS[mark.colour], height=0.62, zorder=order)
            if mark.spread is not None:
                axes.errorbar(mark.x, mark.y, xerr=mark.spread, color=QUIET, linewidth=1, capsize=2, zorder=order)
        case TextMark():
            offset = {"xytext": (5, 0), "textcoords": "offset points"}
            axes.annotate(shown(mark.text), (mark.x, mark.y), va="center", color=QUIET, fontsize=7, **offset)
        case ReferenceMark():
            _draw_reference(axes, mark)
        case ImageMark():
            _draw_image(axes, mark)


def _floats(values: Values) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _draw_points(axes: Any, points: PointsMark, label: str | None, order: int) -> None:
    colour, marker, area = COLOURS[points.colour], MARKERS[points.symbol], (SIZE * points.size) ** 2
    place = {"marker": marker, "clip_on": False}
    if marker == "|":  # the white border keeps a tick visible on a dark bar
        axes.scatter(points.x, points.y, s=1.1 * area, color="white", linewidths=3.4, zorder=order, **place)
        axes.scatter(points.x, points.y, s=area, color=colour, linewidths=1.4, label=label, zorder=order, **place)
        return
    edge = {"edgecolors": "white", "linewidths": 0.8, "alpha": 0.85} if points.outline else {"linewidths": 0.4}
    axes.scatter(points.x, points.y, s=area, color=colour, label=label, zorder=order, **edge, **place)
    if points.interval:
        axes.vlines(points.x, *points.interval, color=colour, linewidth=0.8, zorder=order)


def _draw_reference(axes: Any, mark: ReferenceMark) -> None:
    line = {"color": QUIET, "linestyle": ":", "linewidth": 0.8, "zorder": 1}
    words = {"fontsize": 7, "color": QUIET, "ha": "right", "textcoords": "offset points"}
    if mark.axis == "x":
        axes.axvline(mark.value, **line)
        place = {"xy": (mark.value, 1), "xytext": (-3, -1), "xycoords": ("data", "axes fraction"), "va": "top"}
    else:
        axes.axhline(mark.value, **line)
        place = {"xy": (1, mark.value), "xytext": (0, 2), "xycoords": ("axes fraction", "data")}
    axes.annotate(shown(mark.label), **place, **words)


def _draw_image(axes: Any, image: ImageMark) -> None:
    low, high = image.limits
    drawn = axes.imshow(image.values, cmap=MAPS[image.colours], vmin=low, vmax=high, interpolation="nearest")
    size = 7 if len(image.cells) <= 8 else 5
    for y, line in enumerate(image.cells):
        for x, text in enumerate(line):
            dark = image.values[y][x] < (low + high) / 2  # low values have dark colours in both maps
            colour = "white" if dark else "black"
            words = "\n".join(map(shown, text.split("\n")))
            axes.text(x, y, words, ha="center", va="center", fontsize=size, color=colour)
    if image.bar:
        bar = axes.figure.colorbar(drawn, ax=axes, label=image.bar, extend="both", fraction=0.045, pad=0.02)
        bar.outline.set_visible(False)


def _draw_images(part: Any, view: FigureView) -> None:
    """A grid of images without axes."""
    words = "\n".join(filter(None, (shown(view.label), shown(view.y.label))))
    part.suptitle(words, fontsize=8, x=0.01, ha="left", linespacing=1.4)
    images = view.images
    shape = (1 + max(image.row for image in images), 1 + max(image.column for image in images))
    grid = part.subplots(*shape, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for image in images:
        _draw_image(grid[image.row, image.column], image)
        grid[image.row, image.column].set_title(shown(image.title), fontsize=7, loc="center")


def _draw_legend(drawn: Any, abreast: int) -> None:
    """One legend for all axes, below them; a name that is drawn in two ways is in it twice."""
    found: dict[tuple, tuple[Any, str]] = {}
    for axes in drawn.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            colour = handle.get_color() if hasattr(handle, "get_color") else tuple(handle.get_facecolor()[0])
            style = handle.get_linestyle() if hasattr(handle, "get_color") else ""
            found.setdefault((label, colour, style), (handle, label))
    if found:
        handles, labels = zip(*found.values(), strict=True)
        drawn.legend(handles, labels, loc="outside lower left", ncols=min(abreast, len(labels)), handlelength=2.6)


def label_points(axes: Any, view: FigureView) -> list[Any]:
    """A name beside every point, at the freest place around it or further away, with a line back to its point."""
    from matplotlib import patheffects

    halo = [patheffects.withStroke(linewidth=2, foreground="white")]
    points = [mark for mark in view.marks if isinstance(mark, PointsMark) and mark.labels]
    scale = axes.figure.dpi / 72  # pixels to a point
    centres = [axes.transData.transform((mark.x[0], mark.y[0])) for mark in points]
    radii = [SIZE * mark.size / 2 * scale for mark in points]
    texts = [
        axes.text(0, 0, shown(mark.labels[0]), fontsize=7, color=INK, ha="center", va="center", zorder=len(points) + 9)
        for mark in points
    ]
    extents = [text.get_window_extent() for text in texts]
    sizes = [(extent.width, extent.height) for extent in extents]
    distances = [2.5 * away * scale for away in (1.0, 3.0, 6.0, 9.0)]
    places = place_labels(centres, radii, sizes, axes.get_window_extent().extents, distances)
    into = axes.transData.inverted().transform
    for text, (x, y), (_, distance, box) in zip(texts, centres, places, strict=True):
        text.set_path_effects(halo)
        text.set_position(into(((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)))
        if distance > distances[0]:
            edge = (min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3]))  # of the label, nearest to the point
            axes.plot(*zip(into((x, y)), into(edge), strict=True), color=QUIET, linewidth=0.6, zorder=1)
    return texts
