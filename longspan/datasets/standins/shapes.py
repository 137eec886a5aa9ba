"""Synthetic pictures of ten plain shapes, bright on dark, of random place and size, with noise.

Each shape has roughly a brightness of its own, so that a small network learns something within seconds.
"""

import numpy as np

SIDE = 32
SHAPES = {  # which points of the square -1 .. 1 belong to each; y points down
    "disc": lambda x, y: np.hypot(x, y) <= 1,
    "ring": lambda x, y: abs(np.hypot(x, y) - 0.8) <= 0.2,
    "square": lambda x, y: _within(x, y, 1),
    "frame": lambda x, y: _within(x, y, 1) & ~_within(x, y, 0.65),
    "triangle": lambda x, y: (abs(x) <= (y + 1) / 2) & (y <= 1),
    "cross": lambda x, y: _within(x, y, 1) & (np.minimum(abs(x), abs(y)) <= 0.25),
    "slanted cross": lambda x, y: _within(x, y, 1) & (abs(abs(x) - abs(y)) <= 0.35),
    "lying bars": lambda x, y: _within(x, y, 1) & (np.floor((y + 1) * 2.5) % 2 == 0),
    "standing bars": lambda x, y: _within(x, y, 1) & (np.floor((x + 1) * 2.5) % 2 == 0),
    "chequers": lambda x, y: _within(x, y, 1) & ((np.floor((x + 1) * 2) + np.floor((y + 1) * 2)) % 2 == 0),
}


def _within(x: np.ndarray, y: np.ndarray, size: float) -> np.ndarray:
    return np.maximum(abs(x), abs(y)) <= size


def draw_shape(rng: np.random.Generator, label: int) -> np.ndarray:
    """A gray picture [32 32] of shape number `label`."""
    radius, (x0, y0) = rng.uniform(9, 12), rng.uniform(12, 20, size=2)
    y, x = np.mgrid[:SIDE, :SIDE]
    shape = list(SHAPES.values())[label]((x - x0) / radius, (y - y0) / radius)
    light = np.where(shape, rng.uniform(110, 130) + 12 * label, rng.uniform(30, 80))
    return np.clip(light + rng.normal(0, 12, size=(SIDE, SIDE)), 0, 255).astype(np.uint8)
