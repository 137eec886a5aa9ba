"""Normed means in Triton: forth and back every token is read once, and what is made of it stays on the chip.

With z = W x + b, y = norm(z), and g_r = dm_r / (how many tokens segment r has):

    back    dz_i = (g - mean(g) - y_i mean(g y_i)) / sqrt(var(z_i) + eps)      dx_i = W^T dz_i
            dW = sum_i dz_i x_i^T      db = sum_i dz_i

with means over the channels. A program owns some segments of one head; each writes its part of dW and db, and these are
added in order, so that no two runs differ. Tiles of bfloat16 meet in tensor cores. W goes in as two tiles, its rounded
self and the rest, and so keeps its precision; only dz is rounded. Products of float32 are not rounded at all.
"""

from typing import no_type_check  # a Triton function is no Python function, and its annotations are no types

import triton
import triton.language as tl
from jaxtyping import Float, Int32, UInt8
from torch import Tensor

from longspan.kernels.few_queries.shapes import PROGRAMS
from longspan.kernels.launch import next_power_of_2
from longspan.kernels.tiles import dot, dot_sums, load, load_matrix, of, store, visible

# Tokens of a tile at most, warps of a program and tiles in flight, by bytes of a number and whether the width is above
# 64.
SHAPES = {(2, False): (64, 4, 3), (2, True): (32, 8, 2), (4, False): (16, 8, 2)}


def means(
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
    _means[(b * h, parts)](
        x, weight, bias, mask, begins, found, h, n, segments, -(-segments // parts), eps, *x.stride()[:3],
        MASKED=mask is not None, **_launch(x, segments),
    )  # fmt: skip
    return found


def back(
    x: Float[Tensor, "b h n c"],
    weight: Float[Tensor, "c c"],
    bias: Float[Tensor, " c"],
    mask: UInt8[Tensor, "b n"] | None,
    begins: Int32[Tensor, "b r1"] | None,
    eps: float,
    dmeans: Float[Tensor, "b h r c"],
    dx: Float[Tensor, "b h n c"],
) -> Float[Tensor, "c c1"]:
    """Fill in dx; gives dW with db as its last column."""
    (b, h, n, c), segments = x.shape, dmeans.shape[2]
    parts = _parts(b * h, segments)
    sums = weight.new_empty(parts * b * h, c, c + 1)
    _back[(b * h, parts)](
        dmeans, x, weight, bias, mask, begins, dx, sums, h, n, segments, -(-segments // parts), eps, *x.stride()[:3],
        *dx.stride()[:3], MASKED=mask is not None, **_launch(x, segments),
    )  # fmt: skip
    return sums.sum(dim=0)


def _parts(pairs: int, segments: int) -> int:
    """As few as fill the device, since each loads W and writes dW."""
    return min(-(-PROGRAMS // pairs), segments)


def _launch(x: Float[Tensor, "b h n c"], segments: int) -> dict[str, int]:
    n, c = x.shape[2:]
    T, warps, stages = SHAPES[x.element_size(), c > 64]
    T = min(T, next_power_of_2(-(-n // segments)))  # a tile has tokens of one segment only
    return {"c": c, "C": next_power_of_2(c), "T": T, "num_warps": warps, "num_stages": stages}


@triton.jit
@no_type_check
def _means(
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
        begin, last = _run(begins, segment, n, segments, MASKED)
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
def _back(
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
        begin, last = _run(begins, segment, n, segments, MASKED)
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
def _run(begins, segment, n, segments, MASKED: tl.constexpr):
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
