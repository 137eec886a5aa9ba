"""Synthetic shapes to complete: boxes, cylinders and tables of random proportions, standing upright."""

import numpy as np

SOLIDS = ("box", "cylinder", "table")


def make_solid(rng: np.random.Generator, kind: str, count: int) -> np.ndarray:
    """`count` points of its surface, uniform by area [count 3]; its bounding box has its centre at 0, diagonal 1."""
    width, height, depth = rng.uniform(0.4, 1.0, 3)
    if kind == "box":
        parts = [_box(width, height, depth)]
    elif kind == "cylinder":
        parts = [_cylinder(width / 2, height)]
    else:
        parts = [_box(width, 0.06, depth, up=height / 2)]
        corners = [(x, z) for x in (-1, 1) for z in (-1, 1)]
        parts += [_box(0.06, height, 0.06, x * (width - 0.06) / 2, 0.0, z * (depth - 0.06) / 2) for x, z in corners]
        height += 0.03  # the upper half of the plate
    areas = np.array([area for area, _ in parts])
    chosen = rng.multinomial(count, areas / areas.sum())
    points = np.concatenate([draw(rng, n) for (_, draw), n in zip(parts, chosen, strict=True)])
    size = np.array([width, height, width if kind == "cylinder" else depth])
    points[:, 1] -= 0.015 if kind == "table" else 0.0
    return rng.permutation(points / np.linalg.norm(size)).astype(np.float32)


def _box(width, height, depth, right=0.0, up=0.0, ahead=0.0):
    """The area of a box, and a function that draws points of its surface."""
    size, middle = np.array([width, height, depth]), np.array([right, up, ahead])
    faces = np.array([size.prod() / length for length in size])

    def draw(rng: np.random.Generator, count: int) -> np.ndarray:
        points = rng.uniform(-0.5, 0.5, (count, 3))
        points[np.arange(count), rng.choice(3, count, p=faces / faces.sum())] = rng.choice([-0.5, 0.5], count)
        return middle + size * points

    return 2 * faces.sum(), draw


def _cylinder(radius, height):
    mantle, lid = 2 * np.pi * radius * height, np.pi * radius**2

    def draw(rng: np.random.Generator, count: int) -> np.ndarray:
        turn, is_lid = rng.uniform(0, 2 * np.pi, count), rng.random(count) < 2 * lid / (2 * lid + mantle)
        away = np.where(is_lid, radius * np.sqrt(rng.random(count)), radius)
        up = height * np.where(is_lid, rng.choice([-0.5, 0.5], count), rng.uniform(-0.5, 0.5, count))
        return np.stack([away * np.cos(turn), up, away * np.sin(turn)], axis=1)

    return mantle + 2 * lid, draw
