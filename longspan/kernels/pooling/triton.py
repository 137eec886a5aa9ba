"""Pooling in Triton: every token is read once for normed means and twice for running means; nothing else is large.

Normed means, with z = W x + b, y = norm(z), and g_r = dm_r / (number of tokens of segment r):

    backward  dz_i = (g - mean(g) - y_i mean(g y_i)) / sqrt(var(z_i) + eps)      dx_i = W^T dz_i
              dW = sum_i dz_i x_i^T      db = sum_i dz_i

with means over the channels. A program owns some segments of one head; each writes its part of dW and db, and these are
added in order, which is deterministic. Tiles of bfloat16 meet in tensor cores. W goes in as two tiles, its rounded self
and the rest, and so keeps its precision; only dz is rounded. Products of float32 are not rounded at all.

Running means are sums of tiles first, then every tile by itself, with the sum of all tiles before it. Backward is the
same in the other direction, dx_s = sum_{t >= s} dm_t / count_t: counts divide the input instead of the output, and a
hidden token gets nothing instead of giving nothing.
"""

from typing import no_type_check  # a Triton function is no Python function, and its annotations are no types

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int32, UInt8
from torch import Tensor

from longspan.kernels.launch import Shape, ceil, empty_like, next_power_of_2, strides
from longspan.kernels.running_sum import before, running_sum
from longspan.kernels.tiles import dot, dot_sums, load, load_matrix, of, store, visible

# Normed means: tokens of a tile at most, warps of a program and tiles in flight, by bytes of a number and whether the
# width is above 64.
SHAPES = {(2, False): (64, 4, 3), (2, True): (32, 8, 2), (4, False): (16, 8, 2)}
NUMBERS = 4_096  # of a tile of running means


def normed_means(
    x: Float[Tensor, "b h n c"],
    weight: Float[Tensor, "c c"],
    bias: Float[Tensor, " c"],
    mask: UInt8[Tensor, "b n"] | None,
    begins: Int32[Tensor, "b r1"] | None,
    segments: int,
    eps: float,
) -> Float[Tensor, "b h r c"]:
    b, h, n, c = x.shape
    found, parts = weight.new_empty(b, h, segments, c), _parts(b * h, segments)
    _normed_means[(b * h, parts)](
        x, weight, bias, mask, begins, found, h, n, segments, ceil(segments, parts), eps, *strides(x),
        MASKED=mask is not None, **_launch(x, segments),
    )  # fmt: skip
    return found


def normed_means_backward(
    dmeans: Float[Tensor, "b h r c"],
    x: Float[Tensor, "b h n c"],
    weight: Float[Tensor, "c c"],
    bias: Float[Tensor, " c"],
    mask: UInt8[Tensor, "b n"] | None,
    begins: Int32[Tensor, "b r1"] | None,
    eps: float,
    dx: Float[Tensor, "b h n c"],
) -> Float[Tensor, "c c1"]:
    """Fill in dx; returns dW with db as its last column."""
    (b, h, n, c), segments = x.shape, dmeans.shape[2]
    parts = _parts(b * h, segments)
    sums = weight.new_empty(parts * b * h, c, c + 1)
    _normed_means_backward[(b * h, parts)](
        dmeans, x, weight, bias, mask, begins, dx, sums, h, n, segments, ceil(segments, parts), eps, *strides(x, dx),
        MASKED=mask is not None, **_launch(x, segments),
    )  # fmt: skip
    return sums.sum(dim=0)


def _parts(pairs: int, segments: int) -> int:
    """As few as fill the device, since each loads W and writes dW."""
    return min(ceil(Shape.PROGRAMS, pairs), segments)


def _launch(x: Float[Tensor, "b h n c"], segments: int) -> dict[str, int]:
    n, c = x.shape[2:]
    T, warps, stages = SHAPES[x.element_size(), c > 64]
    T = min(T, next_power_of_2(ceil(n, segments)))  # a tile has tokens of one segment only
    return {"c": c, "C": next_power_of_2(c), "T": T, "num_warps": warps, "num_stages": stages}


@triton.jit
@no_type_check
def _normed_means(
    x, weight, bias, mask, begins, found, heads, n, segments, share, eps, x_b, x_h, x_t,
    c: tl.constexpr, C: tl.constexpr, T: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    pair, row = tl.program_id(0).to(tl.int64), tl.program_id(0) // heads
    x = of(x, row, tl.program_id(0) % heads, x_b, x_h)
    if MASKED:
        mask += row.to(tl.int64) * n
        begins += row * (segments + 1)
    channels = tl.arange(0, C)
    W, b = load_matrix(weight, 0, c, c, C, C), tl.load(bias + channels, mask=channels < c, other=0.0)
    first = tl.program_id(1) * share
    for segment in range(first, tl.minimum(first + share, segments)):
        begin, last = _segment(begins, segment, n, segments, MASKED)
        sums, count = tl.zeros([C], tl.float32), tl.zeros([T], tl.float32)
        for start in range(begin, last, T):
            tokens = start + tl.arange(0, T)
            seen = visible(mask, tokens, last, MASKED)
            normed, _ = _normed(load(x, tokens, x_t, seen, c, C), W, b, eps, c, C)  # [T, C]
            sums += tl.sum(tl.where(seen[:, None], normed, 0.0), axis=0)
            count += seen.to(tl.float32)
        mean = sums / tl.maximum(tl.sum(count, axis=0), 1.0)
        tl.store(found + (pair * segments + segment) * c + channels, mean, mask=channels < c)


@triton.jit
@no_type_check
def _normed_means_backward(
    dmeans, x, weight, bias, mask, begins, dx, sums, heads, n, segments, share, eps,
    x_b, x_h, x_t, dx_b, dx_h, dx_t, c: tl.constexpr, C: tl.constexpr, T: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    pair, row = tl.program_id(0).to(tl.int64), tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    x, dx = of(x, row, head, x_b, x_h), of(dx, row, head, dx_b, dx_h)
    if MASKED:
        mask += row.to(tl.int64) * n
        begins += row * (segments + 1)
    channels = tl.arange(0, C)
    W, b = load_matrix(weight, 0, c, c, C, C), tl.load(bias + channels, mask=channels < c, other=0.0)
    dW, db = tl.zeros([C, C], tl.float32), tl.zeros([C], tl.float32)
    first = tl.program_id(1) * share
    for segment in range(first, tl.minimum(first + share, segments)):
        begin, last = _segment(begins, segment, n, segments, MASKED)
        g = tl.load(dmeans + (pair * segments + segment) * c + channels, mask=channels < c, other=0.0)
        count = tl.maximum(last - begin, 1).to(tl.float32)
        if MASKED:
            several = tl.zeros([T], tl.int32)
            for start in range(begin, last, T):
                several += visible(mask, start + tl.arange(0, T), last, MASKED).to(tl.int32)
            count = tl.maximum(tl.sum(several, axis=0), 1).to(tl.float32)
        g = g / count
        g -= tl.where(channels < c, tl.sum(g, axis=0) / c, 0.0)
        for start in range(begin, last, T):
            tokens = start + tl.arange(0, T)
            seen = visible(mask, tokens, last, MASKED)
            own = load(x, tokens, x_t, seen, c, C)  # [T, C]
            normed, by = _normed(own, W, b, eps, c, C)
            dz = (g[None, :] - normed * (tl.sum(g[None, :] * normed, axis=1) / c)[:, None]) * by[:, None]
            dz = tl.where(seen[:, None], dz, 0.0)
            rounded = dz.to(own.dtype)
            store(dx, dot_sums(rounded, W), tokens, dx_t, tokens < last, c, C)
            dW = dot(tl.trans(rounded), own, dW)
            db += tl.sum(dz, axis=0)
    sums += (tl.program_id(1).to(tl.int64) * tl.num_programs(0) + pair) * (c * (c + 1))
    real = (channels < c)[:, None] & (channels < c)[None, :]
    tl.store(sums + channels[:, None] * (c + 1) + channels[None, :], dW, mask=real)
    tl.store(sums + channels * (c + 1) + c, db, mask=channels < c)


@triton.jit
@no_type_check
def _segment(begins, segment, n, segments, MASKED: tl.constexpr):
    """Where a segment begins and ends; without a mask they are cut evenly, the longer ones last."""
    if MASKED:
        begin, end = tl.load(begins + segment), tl.load(begins + segment + 1)
    else:
        short, whole = tl.maximum(n // segments, 1), segments - tl.where(n < segments, 0, n % segments)
        begin = tl.minimum(segment * short + tl.maximum(segment - whole, 0), n)
        end = tl.minimum((segment + 1) * short + tl.maximum(segment + 1 - whole, 0), n)
    return begin, end


@triton.jit
@no_type_check
def _normed(x, W, b, eps, c: tl.constexpr, C: tl.constexpr):
    """norm(W x + b) of a tile [T, C], and what each token was multiplied by [T]."""
    z = dot_sums(x, tl.trans(W)) + b[None, :]
    z -= tl.where((tl.arange(0, C) < c)[None, :], (tl.sum(z, axis=1) / c)[:, None], 0.0)
    by = tl.rsqrt(tl.sum(z * z, axis=1) / c + eps)
    return z * by[:, None], by


def running_mean(
    x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None, backward: bool
) -> Float[Tensor, "b h n c"]:
    b, h, n, c = x.shape
    C = next_power_of_2(c)
    T = max(16, NUMBERS // C)
    counts = None if mask is None else mask.cumsum(dim=1, dtype=torch.int32).clamp(min=1)
    beside = (None if mask is None else mask.view(torch.uint8), counts)
    sums, y = x.new_empty(b, h, ceil(n, T), c, dtype=torch.float32), empty_like(x, c, x.dtype)
    how = {"c": c, "C": C, "T": T, "BACKWARD": backward, "MASKED": mask is not None, "num_warps": 4}
    _running_sums[(sums.shape[2], b * h)](x, *beside, sums, h, n, *strides(x), **how)
    sums = sums.flip(2) if backward else sums
    sums = before(running_sum(sums)[..., None, :])[..., 0, :]
    sums = sums.flip(2) if backward else sums
    _running_means[(sums.shape[2], b * h)](x, *beside, sums.contiguous(), y, h, n, *strides(x, y), **how)
    return y


@triton.jit
@no_type_check
def _running_sums(
    x, mask, counts, sums, heads, n, x_b, x_h, x_t, c: tl.constexpr, C: tl.constexpr, T: tl.constexpr,
    BACKWARD: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(1).to(tl.int64)
    tile, _, _ = _addends(x, mask, counts, pair, heads, n, x_b, x_h, x_t, c, C, T, BACKWARD, MASKED)
    channels = tl.arange(0, C)
    at = (pair * tl.num_programs(0) + tl.program_id(0)) * c + channels
    tl.store(sums + at, tl.sum(tile, axis=0), mask=channels < c)


@triton.jit
@no_type_check
def _running_means(
    x, mask, counts, sums, y, heads, n, x_b, x_h, x_t, y_b, y_h, y_t, c: tl.constexpr, C: tl.constexpr,
    T: tl.constexpr, BACKWARD: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(1).to(tl.int64)
    tile, real, count = _addends(x, mask, counts, pair, heads, n, x_b, x_h, x_t, c, C, T, BACKWARD, MASKED)
    channels = tl.arange(0, C)
    at = (pair * tl.num_programs(0) + tl.program_id(0)) * c + channels
    found = tl.cumsum(tile, axis=0, reverse=BACKWARD) + tl.load(sums + at, mask=channels < c, other=0.0)[None, :]
    if BACKWARD:
        found = tl.where(real[:, None], found, 0.0)
    else:
        found = found / count[:, None]
    tokens = tl.program_id(0) * T + tl.arange(0, T)
    store(y + pair // heads * y_b + pair % heads * y_h, found, tokens, y_t, tokens < n, c, C)


@triton.jit
@no_type_check
def _addends(
    x, mask, counts, pair, heads, n, x_b, x_h, x_t, c: tl.constexpr, C: tl.constexpr, T: tl.constexpr,
    BACKWARD: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """What a tile [T, C] adds to the sums, which tokens are real, and how many real ones there are up to each."""
    row, tokens = pair // heads, tl.program_id(0) * T + tl.arange(0, T)
    real, count = tokens < n, (tokens + 1).to(tl.float32)
    if MASKED:
        count = tl.load(counts + row * n + tokens, mask=real, other=1).to(tl.float32)
        real = real & (tl.load(mask + row * n + tokens, mask=real, other=0) != 0)
    tile = load(x + row * x_b + pair % heads * x_h, tokens, x_t, tokens < n, c, C).to(tl.float32)
    if BACKWARD:
        tile = tile / count[:, None]
    else:
        tile = tl.where(real[:, None], tile, 0.0)
    return tile, real, count
