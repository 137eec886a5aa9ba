"""Synthetic pictures in colour: a gradient, and discs, boxes and stripes upon it, with soft edges."""

import numpy as np


def draw_scene(rng: np.random.Generator, side: int) -> np.ndarray:
    """A picture [side side 3] in bytes."""
    y, x = np.mgrid[:side, :side] / side
    angle, (dark, bright) = rng.uniform(0, 2 * np.pi), rng.uniform(0, 1, (2, 3))
    slope = (np.cos(angle) * (x - 0.5) + np.sin(angle) * (y - 0.5) + 0.75) / 1.5
    picture = dark + (bright - dark) * slope[..., None]
    for _ in range(rng.integers(2, 6)):
        (x0, y0), size, turn = rng.uniform(0.1, 0.9, 2), rng.uniform(0.08, 0.3), rng.uniform(0, np.pi)
        u, v = np.cos(turn) * (x - x0) + np.sin(turn) * (y - y0), np.cos(turn) * (y - y0) - np.sin(turn) * (x - x0)
        inside = [
            size - np.hypot(u, v),
            size - np.maximum(abs(u), abs(v)),
            np.minimum(size * np.sin(u * 3 / size), size - abs(v)),
        ][rng.integers(3)]
        cover = np.clip(inside * side / 2 + 0.5, 0, 1)[..., None]
        picture = picture * (1 - cover) + rng.uniform(0, 1, 3) * cover
    return np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8)
