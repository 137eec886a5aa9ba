"""Where the names of points go, so that few of them cover one another."""

from collections.abc import Sequence

Box = tuple[float, float, float, float]  # left, bottom, right, top
AROUND = {  # places of a label around its point; y points upwards
    "middle right": (1, 0),
    "middle left": (-1, 0),
    "top center": (0, 1),
    "bottom center": (0, -1),
    "top right": (0.8, 0.8),
    "top left": (-0.8, 0.8),
    "bottom right": (0.8, -0.8),
    "bottom left": (-0.8, -0.8),
}


def place_labels(
    points: Sequence[tuple[float, float]],
    radii: Sequence[float],
    sizes: Sequence[tuple[float, float]],
    frame: Box,
    distances: Sequence[float] = (1.0,),
) -> list[tuple[str, float, Box]]:
    """For each label its place, the distance from the point's edge and its box, all in one unit of length.

    Greedy, the smallest point first: each label goes where it shares least area with points and earlier labels; leaving
    the frame costs much more, a greater distance a little.
    """
    taken = [(x - r, y - r, x + r, y + r) for (x, y), r in zip(points, radii, strict=True)]
    chosen: dict[int, tuple[str, float, Box]] = {}
    for index in sorted(range(len(points)), key=lambda index: radii[index]):
        (x, y), radius, (width, height) = points[index], radii[index], sizes[index]
        found = []
        for distance in distances:
            for place, (across, up) in AROUND.items():
                middle_x = x + across * (radius + distance + width / 2)
                middle_y = y + up * (radius + distance + height / 2)
                box = (middle_x - width / 2, middle_y - height / 2, middle_x + width / 2, middle_y + height / 2)
                outside = (frame[0] - box[0], frame[1] - box[1], box[2] - frame[2], box[3] - frame[3])
                cost = sum(overlap(box, other) for other in taken) + 100 * sum(max(side, 0.0) for side in outside)
                found.append((cost + distance, (place, distance, box)))
        best = min(found, key=lambda pair: pair[0])[1]
        chosen[index] = best
        taken.append(best[2])
    return [chosen[index] for index in range(len(points))]


def overlap(one: Box, other: Box) -> float:
    """The area that two boxes share."""
    across = min(one[2], other[2]) - max(one[0], other[0])
    up = min(one[3], other[3]) - max(one[1], other[1])
    return max(across, 0.0) * max(up, 0.0)
