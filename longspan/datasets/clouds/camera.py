"""A virtual depth camera: the nearest point at every pixel of a 160 x 120 picture, focal length 120 pixels.

    partial = seen(points, pose(azimuth=30, elevation=20))

It looks at the origin from a distance of 1.5, like the camera of the reference views. A pixel that falls into a gap
between the points of a surface shows what lies behind, so a pixel that is farther than most of its neighbours is
dropped.
"""

from typing import NamedTuple

import numpy as np

WIDTH, HEIGHT, FOCAL = 160, 120, 120.0
DISTANCE = 1.5
ELEVATION = (-10.0, 45.0)  # degrees
BEHIND, NEARER = 0.03, 5  # a pixel this much farther than this many of its eight neighbours is seen through a gap


class Pose(NamedTuple):
    rotation: np.ndarray  # [3 3], rows: the camera's right, down, forward
    position: np.ndarray  # [3]


def pose(azimuth: float, elevation: float, distance: float = DISTANCE) -> Pose:
    """Degrees; azimuth 0 is in front (+z), 90 at +x, elevation counts from the ground, y is up."""
    turn, lift = np.radians([azimuth, elevation])
    towards = np.array([np.cos(lift) * np.sin(turn), np.sin(lift), np.cos(lift) * np.cos(turn)])
    right = np.array([np.cos(turn), 0.0, -np.sin(turn)])
    return Pose(np.stack([right, np.cross(-towards, right), -towards]), distance * towards)


def random_pose(rng: np.random.Generator) -> Pose:
    return pose(rng.uniform(0, 360), rng.uniform(*ELEVATION))


def seen(points: np.ndarray, camera: Pose) -> np.ndarray:
    """The points that the camera sees, one per pixel, in pixel order."""
    x, y, z = ((points - camera.position) @ camera.rotation.T).T
    ahead = z > 1e-6
    depth = np.where(ahead, z, 1.0)
    across, down = np.floor(FOCAL * x / depth + WIDTH / 2), np.floor(FOCAL * y / depth + HEIGHT / 2)
    inside = np.flatnonzero(ahead & (across >= 0) & (across < WIDTH) & (down >= 0) & (down < HEIGHT))
    pixel, z = (down[inside] * WIDTH + across[inside]).astype(np.int64), z[inside]
    picture = np.full(HEIGHT * WIDTH, np.inf)
    np.minimum.at(picture, pixel, z)
    nearest = np.full(HEIGHT * WIDTH, -1)
    front = z == picture[pixel]
    nearest[pixel[front]] = inside[front]
    kept = np.flatnonzero((nearest >= 0) & ~_through_gaps(picture.reshape(HEIGHT, WIDTH)).reshape(-1))
    return points[nearest[kept]]


def _through_gaps(picture: np.ndarray) -> np.ndarray:
    framed = np.pad(picture, 1, constant_values=np.inf)
    height, width = picture.shape
    nearer = np.zeros(picture.shape, np.int8)
    for down, across in np.ndindex(3, 3):  # includes the pixel itself, which is not nearer than itself
        nearer += framed[down : down + height, across : across + width] < picture - BEHIND
    return nearer >= NEARER
