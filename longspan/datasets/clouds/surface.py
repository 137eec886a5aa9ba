"""Points on a surface: for a mesh, uniform by area; for a cloud, between a point and its nearest neighbours.

A cloud of thousands of points has gaps through which a camera would see what lies behind. `between` fills them with
points in random triangles of each point and two of its nearest neighbours, as dense as wanted.
"""

import numpy as np

from longspan.core.errors import CorruptFile
from longspan.datasets.clouds.mesh import Mesh

NEIGHBOURS = 24
BLOCK = 512  # points whose distances to all others are in memory at a time


def sample(mesh: Mesh, count: int, rng: np.random.Generator, where: str) -> np.ndarray:
    """`count` points of a mesh, uniform by area, in random order."""
    corners = mesh.vertices.astype(np.float64)[mesh.triangles]
    edges = corners[:, 1:] - corners[:, :1]
    areas = np.linalg.norm(np.cross(edges[:, 0], edges[:, 1]), axis=1)
    if not (total := areas.sum()) > 0 or not np.isfinite(total):
        raise CorruptFile(f"{where}: all faces together have no area, so no points can be taken; leave the file out.")
    chosen = rng.choice(len(areas), count, p=areas / total)
    return corners[chosen, 0] + _weighed(edges[chosen], rng)


def between(points: np.ndarray, per_point: int, rng: np.random.Generator) -> np.ndarray:
    """The points themselves, and `per_point` for each from the triangles of its neighbourhood."""
    near = neighbours(points, min(NEIGHBOURS, len(points) - 1))
    if near.shape[1] < 2:
        return points
    row = np.repeat(np.arange(len(points)), per_point)
    first = rng.integers(0, near.shape[1], len(row))
    second = (first + rng.integers(1, near.shape[1], len(row))) % near.shape[1]
    edges = points[np.stack([near[row, first], near[row, second]], axis=1)] - points[row, None]
    return np.concatenate([points, points[row] + _weighed(edges, rng)])


def neighbours(points: np.ndarray, count: int) -> np.ndarray:
    """The `count` nearest other points of each point, in no particular order [n count]."""
    near = np.empty((len(points), count), np.int64)
    points = points.astype(np.float32)
    squares = (points**2).sum(axis=1)
    for first in range(0, len(points), BLOCK):
        rows = np.arange(first, min(first + BLOCK, len(points)))
        distances = squares - 2 * points[rows] @ points.T  # up to a constant in each row
        distances[rows - first, rows] = np.inf
        near[rows] = np.argpartition(distances, count - 1, axis=1)[:, :count] if count else near[rows]
    return near


def centred(points: np.ndarray, where: str) -> tuple[np.ndarray, float]:
    """The centre of the bounding box [3], and its diagonal."""
    low, high = points.min(axis=0), points.max(axis=0)
    diagonal = float(np.linalg.norm(high - low))
    if not diagonal > 0:
        raise CorruptFile(f"{where}: all points are one, so the shape has no size; leave the file out.")
    return (low + high) / 2, diagonal


def _weighed(edges: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A uniform point in each triangle, relative to a corner; `edges` [n 2 3] lead from there to the other two."""
    weights = rng.random((len(edges), 2))
    weights = np.where(weights.sum(axis=1, keepdims=True) > 1, 1 - weights, weights)
    return np.einsum("nk,nkc->nc", weights, edges)
