"""Geometry of point clouds in Triton: distances live in registers, and only indices are written.

`nearest` compares a tile of rows [R] with all columns. Tracking the index of each smallest distance would cost as much
as the distances, so a program tracks chunks of STEPS x C columns: their smallest distance is one instruction a pair.
The chunk that has the smallest of a row, the first of equals, is then searched again for the column.

With BOTH the same distances also serve the columns. A program is one warp whose lanes have a column each, so that the
smallest distance of a column in the tile needs no other lane. It is combined with those of other tiles in `blocks`, by
an atomic minimum of the distance, whose bits are ordered like integers, followed by the index of the tile; a minimum is
the same in any order. `in_block` then searches the tile that won.

`farthest_points` has a program for each cloud, which holds all of its points. `k_nearest` has one for each query,
which holds the distances to all sources and takes out the smallest k times.
"""

from typing import no_type_check  # Triton functions are not Python functions, nor are their annotations types

import triton
import triton.language as tl

FAR = tl.constexpr(float("inf"))
LAST = tl.constexpr(2**31 - 1)  # after every index
UNROLLED = tl.constexpr(4)  # steps, of which STEPS is a multiple; all of them would overflow the instruction cache


@triton.jit
@no_type_check
def nearest(a, b, index, blocks, n, m, R: tl.constexpr, C: tl.constexpr, STEPS: tl.constexpr, BOTH: tl.constexpr):
    cloud, block, column = tl.program_id(1).to(tl.int64), tl.program_id(0), tl.arange(0, C)
    row = block * R + tl.arange(0, R)
    a += cloud * 3 * n
    b += cloud * 3 * m
    x = tl.load(a + row, mask=row < n, other=FAR)[:, None]
    y = tl.load(a + n + row, mask=row < n, other=FAR)[:, None]
    z = tl.load(a + 2 * n + row, mask=row < n, other=FAR)[:, None]
    best, chunk = tl.full([R, C], FAR, tl.float32), tl.zeros([R, C], tl.int32)
    for start in range(0, m, STEPS * C):
        near = tl.full([R, C], FAR, tl.float32)
        for some in range(0, STEPS, UNROLLED):
            for step in tl.static_range(UNROLLED):
                at = start + (some + step) * C + column
                distance = _squared(x, y, z, b, at[None, :], m)
                near = tl.minimum(near, distance)
                if BOTH:
                    bits = tl.min(distance, axis=0).to(tl.int32, bitcast=True).to(tl.int64)
                    tl.atomic_min(blocks + cloud * m + at, (bits << 32) | block, mask=at < m, sem="relaxed")
        chunk = tl.where(near < best, start, chunk)
        best = tl.minimum(near, best)
    first = tl.min(tl.where(best == tl.min(best, axis=1)[:, None], chunk, LAST), axis=1)
    near, found = tl.full([R, C], FAR, tl.float32), tl.zeros([R, C], tl.int32)
    for step in range(STEPS):
        at = first[:, None] + step * C + column[None, :]
        distance = _squared(x, y, z, b, at, m)
        found = tl.where(distance < near, at, found)
        near = tl.where(distance < near, distance, near)
    found = tl.min(tl.where(near == tl.min(near, axis=1)[:, None], found, LAST), axis=1)
    tl.store(index + cloud * n + row, found.to(tl.int64), mask=row < n)


@triton.jit
@no_type_check
def in_block(a, b, blocks, index, n, m, R: tl.constexpr, T: tl.constexpr):
    cloud, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * T + tl.arange(0, T)
    b += cloud * 3 * m
    x = tl.load(b + at, mask=at < m, other=0.0)
    y = tl.load(b + m + at, mask=at < m, other=0.0)
    z = tl.load(b + 2 * m + at, mask=at < m, other=0.0)
    first = (tl.load(blocks + cloud * m + at, mask=at < m, other=0) & LAST).to(tl.int32) * R
    near, found = tl.full([T], FAR, tl.float32), tl.zeros([T], tl.int32)
    for step in range(R):
        distance = _squared(x, y, z, a + cloud * 3 * n, first + step, n)
        found = tl.where(distance < near, first + step, found)
        near = tl.where(distance < near, distance, near)
    tl.store(index + cloud * m + at, found.to(tl.int64), mask=at < m)


@triton.jit
@no_type_check
def k_nearest(query, source, index, n, m, k: tl.constexpr, M: tl.constexpr):
    cloud, column = tl.program_id(1).to(tl.int64), tl.arange(0, M)
    row = cloud * n + tl.program_id(0)
    x, y, z = tl.load(query + 3 * row), tl.load(query + 3 * row + 1), tl.load(query + 3 * row + 2)
    distance = _squared(x, y, z, source + cloud * 3 * m, column, m)  # [M]
    for i in tl.static_range(k):
        found = tl.min(tl.where(distance == tl.min(distance, axis=0), column, LAST), axis=0)
        tl.store(index + row * k + i, found.to(tl.int64))
        distance = tl.where(column == found, FAR, distance)


@triton.jit
@no_type_check
def farthest_points(x, start, index, n, k, N: tl.constexpr):
    cloud, point = tl.program_id(0).to(tl.int64), tl.arange(0, N)
    x += cloud * 3 * n
    index += cloud * k
    px = tl.load(x + 3 * point, mask=point < n, other=0.0)
    py = tl.load(x + 3 * point + 1, mask=point < n, other=0.0)
    pz = tl.load(x + 3 * point + 2, mask=point < n, other=0.0)
    distance = tl.load(start + cloud * n + point, mask=point < n, other=-1.0)
    chosen = tl.full([], 0, tl.int32)
    tl.store(index, chosen.to(tl.int64))
    for i in range(1, k):
        dx = px - tl.load(x + 3 * chosen)
        dy = py - tl.load(x + 3 * chosen + 1)
        dz = pz - tl.load(x + 3 * chosen + 2)
        distance = tl.minimum(distance, dx * dx + dy * dy + dz * dz)
        chosen = tl.argmax(distance, axis=0, tie_break_left=True)
        tl.store(index + i, chosen.to(tl.int64))


@triton.jit
@no_type_check
def _squared(x, y, z, b, at, m):
    """Squared distances to points of a cloud stored as [3, m]; beyond its end they are infinite, also from FAR."""
    there = at < m
    dx = x - tl.load(b + at, mask=there, other=-FAR)
    dy = y - tl.load(b + m + at, mask=there, other=-FAR)
    dz = z - tl.load(b + 2 * m + at, mask=there, other=-FAR)
    return dx * dx + dy * dy + dz * dz
