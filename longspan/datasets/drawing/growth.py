"""Growing snakes: two targets side by side, then distractors, then two markers; all on integer pixels.

A snake is a row of paddles. From its pivot it sees a ring of pixels, picks one (free, and preferably straight ahead) as
the head of the next paddle, and moves the pivot. The zone of the newest paddle is kept out of the mask until the next
one is drawn, since neighbours of one snake may touch. Zones and mask are bytes: 255 is fully taken.

Plain functions, compiled where numba is present; `rng.random()` is the only source of chance.
"""

import numpy as np

from longspan.datasets.generation.compiled import compiled

TAKEN = 76  # a pixel above this (0.3 of full) is not free for a seed
CROSSING = 459  # two zones that sum to this (1.8 of full) somewhere overlap
FULL = 255
SPARSE = 0.01  # below this share of free pixels no more seeds are tried
HASTY = 8  # random tries before all possibilities are counted; affects the time, not the distribution


@compiled
def grow_targets(rng, stamps, size, padding, seed_distance, contour, retrials, mask, trail, tips):
    """One attempt at the two target snakes; False if one of them ran into something.

    `trail` [2 * contour, 3] receives stamp, row and column of every paddle, `tips` [snake, first or last, 2] the ends,
    `mask` the zones. Most attempts fail early, so nothing is drawn here.
    """
    pivots = np.zeros((2, 2), np.int64)
    directions = np.zeros(2, np.int64)
    if not _seed_targets(rng, stamps, size, seed_distance, retrials, pivots, directions, trail, tips):
        return False
    mask[:, :] = 0
    _fill_border(mask, padding)
    for paddle in range(1, contour):
        for snake in range(2):
            direction = extend(rng, stamps, retrials, mask, pivots[snake], directions[snake])
            if direction < 0:
                return False
            _stamp_zone(mask, stamps.zones, trail[2 * (paddle - 1) + snake])
            _record(stamps, pivots[snake], direction, trail[2 * paddle + snake])
            directions[snake] = direction
            tips[snake, 1, :] = trail[2 * paddle + snake, 1:]
    _stamp_zone(
        mask, stamps.zones, trail[2 * contour - 1]
    )  # the original leaves out the last paddle of the first snake
    return True


@compiled
def grow_distractor(rng, stamps, length, retrials, mask, trail):
    """One attempt at a distractor; `mask` and `trail` [length, 3] count only when it returns True."""
    pivot = np.zeros(2, np.int64)
    direction = _seed_distractor(rng, stamps, retrials, mask, pivot, trail[0])
    if direction < 0:
        return False
    for paddle in range(1, length):
        direction = extend(rng, stamps, retrials, mask, pivot, direction)
        if direction < 0:
            return False
        _stamp_zone(mask, stamps.zones, trail[paddle - 1])
        _record(stamps, pivot, direction, trail[paddle])
    _stamp_zone(mask, stamps.zones, trail[length - 1])
    return True


@compiled
def extend(rng, stamps, retrials, mask, pivot, direction):
    """Move `pivot` on and choose the direction of the next paddle; -1 at a dead end."""
    pivot[0] += stamps.advance[direction, 0]
    pivot[1] += stamps.advance[direction, 1]
    for _ in range(retrials + 1):
        chosen = _choose_head(rng, stamps, mask, pivot, direction)
        if chosen < 0:
            return -1
        row, column = pivot[0] + stamps.ring[chosen, 0], pivot[1] + stamps.ring[chosen, 1]
        if not _crosses(mask, stamps.zones[stamps.stamp[360 + chosen]], row, column):
            return 360 + chosen
    return -1


@compiled
def _choose_head(rng, stamps, mask, pivot, direction):
    """A ring pixel drawn with probability proportional to turn weight times freedom; -1 if none is free.

    First by rejection, which looks at one pixel at a time and mostly succeeds at once; then by summing over the ring.
    """
    turns = stamps.turns[direction]
    for _ in range(HASTY):
        chosen = np.searchsorted(turns, rng.random() * turns[-1], side="right")
        if rng.random() < _freedom(mask, stamps, pivot, chosen):
            return chosen
    cumulative = np.zeros(len(turns))
    total, before = 0.0, 0.0
    for k in range(len(turns)):
        if turns[k] > before:
            total += (turns[k] - before) * _freedom(mask, stamps, pivot, k)
        before = turns[k]
        cumulative[k] = total
    if total < 1e-4:
        return -1
    return min(np.searchsorted(cumulative, rng.random() * total, side="right"), len(turns) - 1)


@compiled
def _freedom(mask, stamps, pivot, k):
    """1 where nothing lies within the margin of ring pixel k, 0 where something does or the image ends."""
    row, column = pivot[0] + stamps.ring[k, 0], pivot[1] + stamps.ring[k, 1]
    if not (0 <= row < mask.shape[0] and 0 <= column < mask.shape[1]):
        return 0.0
    return 1.0 - _highest(mask, stamps.disc, row, column) / FULL


@compiled
def _seed_targets(rng, stamps, size, seed_distance, retrials, pivots, directions, trail, tips):
    """The first paddle of both snakes: one near the centre, one at the seed distance from it."""
    for snake in range(2):
        found = False
        for _ in range(retrials + 1):
            degree = int(rng.random() * 360)
            if snake == 0:
                low, high = stamps.first_start[degree], stamps.first_start[degree + 1]
                if low == high:
                    return False
                tail = stamps.first[low + int(rng.random() * (high - low))]
                row, column = tail[0], tail[1]
            else:
                around = int(rng.random() * 360) * np.pi / 180
                row = int(np.rint(tips[0, 0, 0] + seed_distance * np.sin(around)))
                column = int(np.rint(tips[0, 0, 1] + seed_distance * np.cos(around)))
            if _place_seed(stamps, size, degree, row, column, pivots[snake]):
                found = True
                break
        if not found:
            return False
        directions[snake] = degree
        tips[snake, 0, 0], tips[snake, 0, 1] = row, column
        trail[snake, 0], trail[snake, 1], trail[snake, 2] = stamps.stamp[degree], row, column
    return True


@compiled
def _seed_distractor(rng, stamps, retrials, mask, pivot, paddle):
    """A first paddle on free pixels anywhere; returns its direction, or -1."""
    size = mask.shape[0]
    if np.sum(mask <= TAKEN) < SPARSE * size * size:
        return -1
    lined = mask.copy()
    _fill_border(lined, 1)
    for _ in range(retrials + 1):
        degree = int(rng.random() * 360)
        low, high = stamps.shape_start[degree], stamps.shape_start[degree + 1]
        if low == high:
            return -1
        chosen = _choose_free(rng, lined, stamps.shape[low:high])
        if chosen < 0:
            return -1
        row, column = chosen // size, chosen % size
        if _place_seed(stamps, size, degree, row, column, pivot):
            paddle[0], paddle[1], paddle[2] = stamps.stamp[degree], row, column
            return degree
    return -1


@compiled
def _choose_free(rng, mask, shape):
    """A pixel at which the shape lies on nothing, all equally likely; -1 if there is none."""
    size = mask.shape[0]
    for _ in range(HASTY):
        pixel = int(rng.random() * size * size)
        if _highest(mask, shape, pixel // size, pixel % size) <= TAKEN:
            return pixel
    free = np.zeros(size * size, np.int64)
    count = 0
    for pixel in range(size * size):
        if _highest(mask, shape, pixel // size, pixel % size) <= TAKEN:
            free[count] = pixel
            count += 1
    return free[int(rng.random() * count)] if count else -1


@compiled
def _place_seed(stamps, size, degree, row, column, pivot):
    """Set the pivot behind a first paddle; False where head or pivot lies outside the image."""
    head_row, head_column = row + stamps.head[degree, 0], column + stamps.head[degree, 1]
    pivot[0], pivot[1] = head_row + stamps.pivot[degree, 0], head_column + stamps.pivot[degree, 1]
    inside = 0 <= head_row < size and 0 <= head_column < size
    return inside and 0 <= pivot[0] < size and 0 <= pivot[1] < size


@compiled
def _record(stamps, pivot, direction, paddle):
    paddle[0] = stamps.stamp[direction]
    paddle[1] = pivot[0] + stamps.ring[direction - 360, 0]
    paddle[2] = pivot[1] + stamps.ring[direction - 360, 1]


@compiled
def _highest(mask, offsets, row, column):
    """The largest mask value under a shape placed at a pixel."""
    highest = 0
    for k in range(len(offsets)):
        y, x = row + offsets[k, 0], column + offsets[k, 1]
        if 0 <= y < mask.shape[0] and 0 <= x < mask.shape[1] and mask[y, x] > highest:
            highest = mask[y, x]
            if highest == FULL:
                break
    return highest


@compiled
def _crosses(mask, zone, row, column):
    top, left = row - zone.shape[0] // 2, column - zone.shape[1] // 2
    first, last = max(0, -left), min(zone.shape[1], mask.shape[1] - left)
    for i in range(max(0, -top), min(zone.shape[0], mask.shape[0] - top)):
        highest = 0
        for j in range(first, last):  # without a branch, so that it compiles to vector instructions
            highest = max(highest, np.int32(mask[top + i, left + j]) + np.int32(zone[i, j]))
        if highest >= CROSSING:
            return True
    return False


@compiled
def _stamp_zone(mask, zones, paddle):
    zone = zones[paddle[0]]
    reach = zone.shape[0] // 2
    for i in range(zone.shape[0]):
        y = paddle[1] - reach + i
        if 0 <= y < mask.shape[0]:
            for j in range(zone.shape[1]):
                x = paddle[2] - reach + j
                if 0 <= x < mask.shape[1]:
                    mask[y, x] = max(mask[y, x], zone[i, j])


@compiled
def _fill_border(mask, width):
    mask[:width, :] = FULL
    mask[-width:, :] = FULL
    mask[:, :width] = FULL
    mask[:, -width:] = FULL


@compiled
def draw(canvas, stamp, row, column, contrast):
    """Lay a stamp over the canvas, the brighter value winning."""
    reach = stamp.shape[0] // 2
    for i in range(stamp.shape[0]):
        y = row - reach + i
        if 0 <= y < canvas.shape[0]:
            for j in range(stamp.shape[1]):
                x = column - reach + j
                if 0 <= x < canvas.shape[1]:
                    canvas[y, x] = max(canvas[y, x], contrast * stamp[i, j] / FULL)


@compiled
def draw_images(rng, stamps, plan, contrasts, marked, images, labels):
    """Fill `images` [count size size] and `labels` [count]; `stamps` are the tables of each margin.

    One call for many images, since a call from Python holds the GIL for a moment, and many threads draw at once.
    """
    for i in range(len(images)):
        labels[i] = int(rng.random() * 2)
        margin = int(rng.random() * len(stamps))
        draw_image(rng, stamps[margin], plan, contrasts, labels[i], marked, images[i])


@compiled
def draw_image(rng, stamps, plan, contrasts, label, marked, image):
    """One image [size size] of uint8; `plan` holds the integers of the rules, `contrasts` target, distractor."""
    size, padding, seed_distance, contour, distractor, distractors, retrials, distractor_retrials = plan
    mask = np.zeros((size, size), np.uint8)
    canvas = np.zeros((size, size))
    trail = np.zeros((2 * contour, 3), np.int64)
    tips = np.zeros((2, 2, 2), np.int64)
    while not grow_targets(rng, stamps, size, padding, seed_distance, contour, retrials, mask, trail, tips):
        pass
    for paddle in trail:
        draw(canvas, stamps.lines[paddle[0]], paddle[1], paddle[2], contrasts[0])
    for _ in range(distractors):
        for _ in range(distractor_retrials + 1):
            attempt = mask.copy()
            if grow_distractor(rng, stamps, distractor, retrials, attempt, trail):
                mask[:, :] = attempt
                for paddle in trail[:distractor]:
                    draw(canvas, stamps.lines[paddle[0]], paddle[1], paddle[2], contrasts[1])
                break
    origin = int(rng.random() * 2)
    terminal = origin if label == 1 else 1 - origin
    if marked:
        _draw_marker(canvas, stamps.markers, tips[origin, 0])
        _draw_marker(canvas, stamps.markers, tips[terminal, 1])
    low, high = canvas.min(), canvas.max()
    image[:, :] = np.floor((canvas - low) * (FULL / (high - low)) + 0.5).astype(np.uint8)


@compiled
def _draw_marker(canvas, markers, centre):
    """A disc of full brightness; near the border the table holds its trimmed form."""
    side, size = markers.shape[0], canvas.shape[0]
    reach = side // 2
    corner = np.zeros(2, np.int64)
    place = np.zeros(2, np.int64)
    for axis in range(2):
        corner[axis] = min(max(centre[axis] - reach, 0), size - side)
        place[axis] = centre[axis] - corner[axis]
    disc = markers[place[0], place[1]]
    draw(canvas, disc, corner[0] + reach, corner[1] + reach, 1.0)
