"""Every shape that can occur in a Pathfinder image, rendered once, so that drawing is only copying.

All positions are whole pixels. A paddle therefore depends on one thing, the whole-pixel offset of its far end on the
magnified canvas, and there are fewer than a hundred of those. The same holds for where a snake may go next: from a
pivot it sees a fixed ring of pixels, so that directions are numbers (0..359 the whole degrees of a first paddle, then
one per ring pixel) and turning angles are a table.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from longspan.datasets.drawing.rules import Rules, rules_of

DEGREES = 360
FULL = 255


class Stamps(NamedTuple):
    """The tables of one side length and margin. Offsets are (row, column); a paddle starts at its stamp's centre."""

    lines: np.ndarray  # uint8 [stamp side side], a paddle
    zones: np.ndarray  # uint8 [stamp side side], the paddle and the margin around it
    stamp: np.ndarray  # int64 [direction], which stamp; a ring direction is drawn from its far end backwards
    head: np.ndarray  # int64 [degree 2], from tail to head of a first paddle
    pivot: np.ndarray  # int64 [degree 2], from head to pivot of a first paddle
    advance: np.ndarray  # int64 [direction 2], from one pivot to the next
    ring: np.ndarray  # int64 [ring 2], from a pivot to the heads it can reach
    turns: np.ndarray  # float64 [direction ring], how likely the turn is, summed along the ring
    disc: np.ndarray  # int64 [k 2], all offsets within the margin
    shape: np.ndarray  # int64 [k 2], what a first paddle covers wholly, degree by degree
    shape_start: np.ndarray  # int64 [degree + 1]
    first: np.ndarray  # int64 [k 2], where the very first tail of an image may lie, degree by degree
    first_start: np.ndarray  # int64 [degree + 1]
    markers: np.ndarray  # uint8 [row column side side], by distance from the border


@functools.cache
def stamps(size: int, margin: int) -> Stamps:
    rules = rules_of(size)
    length = rules.paddle_length
    angles = np.deg2rad(np.arange(-180, 180))
    ring = _ring(length + margin)
    ring_angles = np.arctan2(ring[:, 0], ring[:, 1])
    every = np.concatenate([angles, ring_angles])

    tips, stamp = np.unique(
        np.concatenate([_step(angles, length * rules.antialias), _step(ring_angles + np.pi, length * rules.antialias)]),
        axis=0,
        return_inverse=True,
    )
    rendered = [_paddle(rules, margin, tip) for tip in tips]
    lines, zones = (np.stack(images) for images in zip(*rendered, strict=True))

    shapes = [_covered(zone, length + margin) for zone in zones[stamp.ravel()[:DEGREES]]]
    firsts = [_first_tails(rules, shape) for shape in shapes]
    turn = np.abs(every[:, None] - ring_angles[None, :])
    turn = np.minimum(np.minimum(turn, 2 * np.pi - turn) * rules.continuity, np.pi / 2)
    tables = Stamps(
        lines=lines,
        zones=zones,
        stamp=stamp.ravel().astype(np.int64),
        head=_step(angles, length),
        pivot=_step(angles + np.pi, length + margin),
        advance=_step(every, length + 2 * margin),
        ring=ring,
        turns=np.cumsum(np.maximum(np.cos(turn), 0.0) ** 2 * (turn < np.pi / 2), axis=1),
        disc=_disc(margin),
        shape=np.concatenate(shapes),
        shape_start=_starts(shapes),
        first=np.concatenate(firsts),
        first_start=_starts(firsts),
        markers=_markers(rules),
    )
    return Stamps(*map(np.ascontiguousarray, tables))  # one memory layout, one compiled version


def marker_reach(rules: Rules) -> int:
    """How far from its centre a marker leaves a trace: the radius and three pixels of Lanczos filter."""
    return math.ceil(rules.marker_radius) + 3


def _step(angles: np.ndarray, distance: float) -> np.ndarray:
    """Whole-pixel offsets (row, column), rounded up as in the original; 1e-9 keeps sin(pi) from being positive."""
    exact = distance * np.stack([np.sin(angles), np.cos(angles)], axis=1)
    return np.ceil(exact - 1e-9).astype(np.int64)


def _ring(radius: int) -> np.ndarray:
    """Pixels on a circle, one sample per pixel of arc, rounded down, without repeats."""
    angles = np.deg2rad(np.arange(0, 360, 360 / (2 * radius * np.pi)))
    exact = radius * np.stack([np.sin(angles), np.cos(angles)], axis=1)
    return np.unique(np.floor(exact + 1e-9).astype(np.int64), axis=0)


def _disc(radius: int) -> np.ndarray:
    row, column = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    return np.argwhere(row**2 + column**2 <= radius**2) - radius


def _paddle(rules: Rules, margin: int, tip: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A paddle from the centre of the stamp towards `tip` (an offset on the magnified canvas), and its zone."""
    reach = rules.paddle_length + math.ceil(rules.paddle_thickness) + margin
    centre, side = reach * rules.antialias, 2 * reach + 1
    canvas = Image.new("L", (2 * centre + 1, 2 * centre + 1))
    ends = [(centre, centre), (centre + int(tip[1]), centre + int(tip[0]))]
    ImageDraw.Draw(canvas).line(ends, fill=FULL, width=round(rules.paddle_thickness * rules.antialias))
    line = np.array(canvas)
    return _shrink(line, side), _shrink(_dilate(line, _disc(margin * rules.antialias)), side)


def _dilate(image: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The maximum over a neighbourhood; what lies outside the image does not count."""
    reach = int(np.abs(offsets).max())
    padded = np.pad(image, reach)
    height, width = image.shape
    views = [padded[reach + y : reach + y + height, reach + x : reach + x + width] for y, x in offsets]
    return np.max(views, axis=0)


def _shrink(image: np.ndarray, side: int) -> np.ndarray:
    return np.array(Image.fromarray(image).resize((side, side), Image.Resampling.LANCZOS))


def _covered(zone: np.ndarray, reach: int) -> np.ndarray:
    """Offsets that a first paddle covers wholly; none at all where the original never seeds in this direction.

    As in the original they sit one pixel too far down and right, and a shape that can lie wholly outside the image when
    placed at one of its corners is of no use: there the original finds "no free pixel" in the whole image.
    """
    offsets = np.argwhere(zone == FULL) - zone.shape[0] // 2 + 1
    offsets = offsets[np.abs(offsets).max(axis=1) <= reach]
    for down, right in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        if ((offsets[:, 0] * down > 0) | (offsets[:, 1] * right > 0)).all():
            return offsets[:0]
    return offsets


def _first_tails(rules: Rules, shape: np.ndarray) -> np.ndarray:
    """Where the first paddle can start so that all it covers stays clear of the border."""
    border = 2 * rules.seed_distance if rules.first_border is None else rules.first_border
    low, high = border, rules.size - border
    if len(shape) == 0:
        return shape
    first, last = np.maximum(low - shape.min(axis=0), 0), np.minimum(high - shape.max(axis=0), rules.size)
    return np.argwhere(np.ones(np.maximum(last - first, 0), bool)) + first


def _starts(lists: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([len(each) for each in lists])]).astype(np.int64)


def _markers(rules: Rules) -> np.ndarray:
    """Discs by row and column of their centre on a small image, whose border trims them as that of a large one does."""
    reach, scale = marker_reach(rules), rules.antialias
    side = 2 * reach + 1
    table = np.zeros((side, side, side, side), np.uint8)
    row, column = np.ogrid[: side * scale, : side * scale]
    for y, x in np.ndindex(side, side):
        inside = (row - y * scale) ** 2 + (column - x * scale) ** 2 <= (rules.marker_radius * scale) ** 2
        table[y, x] = _shrink((inside * FULL).astype(np.uint8), side)
    return table
