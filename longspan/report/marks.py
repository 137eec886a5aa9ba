"""A figure as plain data: marks on axes, and views that a reader switches between. No drawing library is imported here.

`figure_json.py` hands the same data to the site, `paper_figure.py` draws it on paper. Colours are names of style-sheet
variables (`--hue-3`): the page resolves them for its theme, the paper has its own table. Sizes and widths are pixels of
the site. Names come from cards, which are untrusted; the renderers clean and escape them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

GREY = "--line-strong"  # what belongs to no mechanism: fronts, roofs, intervals
Values = Sequence[float | None]  # None: no mark here, and a line is interrupted


@dataclass(frozen=True, kw_only=True)
class LineMark:
    """`hover` has one text per point; without it the line has no tooltip."""

    x: Values
    y: Values
    colour: str = GREY
    dash: str = "solid"
    width: float = 2.0
    symbol: str = ""  # at each point, if any
    size: float = 6.0
    name: str = ""  # in the legend, if any
    group: str = ""  # marks of one group are hidden together
    hover: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class PointsMark:
    x: Values
    y: Values
    colour: str
    symbol: str = "circle"
    size: float = 10.0  # diameter
    outline: bool = False  # in the background colour, for points that overlap
    interval: tuple[float, float] | None = None  # of y, where there is one point
    labels: Sequence[str] = ()  # written beside the points
    name: str = ""
    group: str = ""
    hover: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class BandMark:
    x: Values
    low: Values
    high: Values
    colour: str
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class BarMark:
    """Horizontal, from zero, in row `y`; `spread` is drawn to both sides of its end."""

    x: float
    y: int
    colour: str
    spread: float | None = None
    group: str = ""
    hover: str = ""


@dataclass(frozen=True)
class TextMark:
    """Words to the right of a place."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class ReferenceMark:
    """A dotted line across the whole plot at one value of an axis."""

    axis: Literal["x", "y"]
    value: float
    label: str


@dataclass(frozen=True, kw_only=True)
class ImageMark:
    """Values as colours, in square pixels, rows from the top down. A view may have a grid of images."""

    values: Any  # [rows columns], NaN where nothing is drawn
    colours: Literal["grey", "cividis"]
    low: float
    high: float
    bar: str = ""  # label of the colour bar, if there is one
    title: str = ""
    row: int = 0
    column: int = 0
    cells: Sequence[Sequence[str]] = ()  # written into the pixels, in one line or two

    @property
    def limits(self) -> tuple[float, float]:
        """The values of the first and the last colour, which must differ."""
        return self.low, self.high if self.high > self.low else self.low + 1.0


Mark = LineMark | PointsMark | BandMark | BarMark | TextMark | ReferenceMark | ImageMark


@dataclass(frozen=True)
class Axis:
    """`rows` are names in place of numbers, the first at the top; marks then count from 0.

    `heights` may make a row higher than others; its edge still lies half a unit from its number.
    """

    label: str = ""
    log: bool = False
    ticks: Mapping[float, str] | None = None  # None: the renderer chooses
    from_zero: bool = False
    rows: Sequence[str] = ()
    heights: Sequence[float] = ()  # all of them 1 if left out


@dataclass(frozen=True)
class FigureView:
    """One set of axes, or a grid of images."""

    label: str
    marks: Sequence[Mark]
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    height: int | None = None  # on the site
    compare: bool = False  # hovering shows the values of all lines at that x
    medium: Literal["both", "site", "paper"] = "both"
    heading: str = ""  # shared by views that belong together; on paper these stand side by side
    side: str = ""  # groups views in the same way, without a heading

    @property
    def title(self) -> str:
        return f"{self.heading}: {self.label}" if self.heading else self.label

    @property
    def images(self) -> list[ImageMark]:
        return [mark for mark in self.marks if isinstance(mark, ImageMark)]

    @property
    def labelled(self) -> bool:
        """Whether names stand beside the points, so that no legend is needed."""
        return any(isinstance(mark, PointsMark) and mark.labels for mark in self.marks)


@dataclass(frozen=True)
class Figure:
    views: Sequence[FigureView]
    title: str = ""  # empty where a question has a single figure
