"""Matplotlib figures that display themselves in a notebook once, whatever its backend."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK = "#1f2933"


class Drawing(Figure):
    """A figure outside pyplot: nothing is kept in a global list, and no window is opened."""

    def __init__(self, width: float, height: float):
        super().__init__(figsize=(width, height), layout="constrained", dpi=110)
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    title: str = "",
    log: bool = False,
    level: tuple[str, float] | None = None,
) -> Drawing:
    """A line for each name; `level` is a dashed line with its name."""
    drawing = Drawing(7.0, 4.2)
    axes = drawing.add_subplot()
    for name, points in series.items():
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=plain(name))
    if level is not None:
        axes.axhline(level[1], color=INK, linewidth=0.8, linestyle="--", label=level[0])
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    _finish(axes, x, y, title)
    axes.legend(frameon=False, fontsize=8)
    return drawing


def dots(names: Sequence[str], panels: Mapping[str, Sequence[tuple[float, float, float] | None]]) -> Drawing:
    """A panel for each column: a value with its interval (low, value, high) for each name, the first one on top."""
    drawing = Drawing(2.4 + 2.3 * len(panels), 1.2 + 0.28 * len(names))
    places = range(len(names))
    for number, (title, values) in enumerate(panels.items()):
        axes = drawing.add_subplot(1, len(panels), number + 1)
        for place, found in zip(places, values, strict=True):
            if found is not None:
                low, value, high = found
                axes.plot([low, high], [place, place], color="C0", linewidth=1.5, alpha=0.5)
                axes.plot([value], [place], "o", color="C0", markersize=5)
        axes.set_yticks(list(places), [plain(name) for name in names] if number == 0 else [""] * len(names))
        axes.set_ylim(len(names) - 0.5, -0.5)
        _finish(axes, "", "", title)
    return drawing


def scatter(points: Mapping[str, tuple[float, float]], *, x: str, y: str, title: str, best: Sequence[str]) -> Drawing:
    """A labelled point for each name; those of `best` are filled."""
    drawing = Drawing(7.0, 4.6)
    axes = drawing.add_subplot()
    for name, (across, up) in points.items():
        axes.plot([across], [up], "o", color="C0", markerfacecolor="C0" if name in best else "white")
        axes.annotate(plain(name), (across, up), (5, 4), textcoords="offset points", fontsize=8)
    for scale, values in (("x", [p[0] for p in points.values()]), ("y", [p[1] for p in points.values()])):
        if min(values) > 0 and max(values) > 10 * min(values):
            getattr(axes, f"set_{scale}scale")("log")
    axes.margins(0.15)
    _finish(axes, x, y, title)
    return drawing


def plain(name: str) -> str:
    """A dollar sign would begin a formula."""
    return name.replace("$", r"\$")


def _finish(axes: Any, x: str, y: str, title: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(plain(title), fontsize=9, loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
