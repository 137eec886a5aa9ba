"""Pooling in Triton: every token is read once for normed means and softmax pooling, twice for running means.

Normed means, with z = W x + b, y = norm(z), and g_r = dm_r / (number of tokens of segment r):

    backward  dz_i = (g - mean(g) - y_i mean(g y_i)) / sqrt(var(z_i) + eps)      dx_i = W^T dz_i
              dW = sum_i dz_i x_i^T      db = sum_i dz_i

with means over the channels. A program owns some segments of one head; each writes its part of dW and db, and these are
added in order, which is deterministic. Products of bfloat16 tiles use tensor cores. W enters them as two tiles, its
rounded value and the remainder, and so keeps its precision; only dz is rounded. Products of float32 are not rounded at
all.

Softmax pooling: the logits of a tile become weights on chip, by the online softmax, and no weight is written.

    backward  da_jr = p_jr (ds_r . x_j - delta_r)      dx_j = sum_r p_jr ds_r      p_jr = exp(a_jr - lse_r)

with delta_r = ds_r . s_r. A program owns a part of one row of one head, in the backward pass a tile of it. Parts have
means and log-sum-exps of their own; the mean of a row is that of its parts with the weights softmax(lse).

Running means first take the sum of each tile, then every tile by itself, with the sum of all tiles before it. The
backward pass is the same in the other direction, dx_s = sum_{t >= s} dm_t / count_t: counts divide the input instead of
the output, and a hidden token receives nothing instead of contributing nothing.
"""

from typing import no_type_check  # Triton functions are not Python functions, nor are their annotations types

import triton
import triton.language as tl

from longspan.kernels.tiles import dot, dot_sums, load, load_matrix, of, store, visible


@triton.jit
@no_type_check
def normed_means(
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
def normed_means_backward(
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


@triton.jit
@no_type_check
def softmax_pooling(
    a, x, mask, s, lse, heads, n, share, a_b, a_h, a_t, x_b, x_h, x_t,
    r: tl.constexpr, c: tl.constexpr, R: tl.constexpr, C: tl.constexpr, T: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    row, head = pair // heads, pair % heads
    a, x = of(a, row, head, a_b, a_h), of(x, row, head, x_b, x_h)
    if MASKED:
        mask += row * n
    total, sums, top = tl.zeros([R, C], tl.float32), tl.zeros([R], tl.float32), tl.full([R], -1e30, tl.float32)
    first = tl.program_id(1) * share
    for start in range(first, tl.minimum(first + share, n), T):
        tokens = start + tl.arange(0, T)
        real = visible(mask, tokens, n, MASKED)
        logits = load(a, tokens, a_t, tokens < n, r, R).to(tl.float32)  # [T, R]
        higher = tl.maximum(top, tl.max(tl.where(real[:, None], logits, -1e30), axis=0))
        p, fade = tl.where(real[:, None], tl.exp(logits - higher[None, :]), 0.0), tl.exp(top - higher)
        tile = load(x, tokens, x_t, tokens < n, c, C)  # [T, C]
        total = dot(tl.trans(p.to(tile.dtype)), tile, total * fade[:, None])
        sums = sums * fade + tl.sum(p, axis=0)
        top = higher
    sums = tl.where(sums > 0, sums, 1.0)  # a part without real tokens has the mean 0, and next to no weight
    place = tl.program_id(1) * tl.num_programs(0).to(tl.int64) + pair
    summaries = tl.arange(0, R)
    store(s + place * r * c, total / sums[:, None], summaries, c, summaries < r, c, C)
    tl.store(lse + place * r + summaries, top + tl.log(sums), mask=summaries < r)


@triton.jit
@no_type_check
def softmax_pooling_backward(
    ds, delta, lse, a, x, mask, da, dx, heads, n, a_b, a_h, a_t, x_b, x_h, x_t, da_b, da_h, da_t, dx_b, dx_h, dx_t,
    r: tl.constexpr, c: tl.constexpr, R: tl.constexpr, C: tl.constexpr, T: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    row, head = pair // heads, pair % heads
    if MASKED:
        mask += row * n
    summaries, tokens = tl.arange(0, R), tl.program_id(1) * T + tl.arange(0, T)
    there, real = tokens < n, visible(mask, tokens, n, MASKED)
    grad = load(ds + pair * r * c, summaries, c, summaries < r, c, C)  # [R, C]
    d = tl.load(delta + pair * r + summaries, mask=summaries < r, other=0.0)
    l = tl.load(lse + pair * r + summaries, mask=summaries < r, other=float("inf"))  # noqa: E741
    logits = load(of(a, row, head, a_b, a_h), tokens, a_t, there, r, R).to(tl.float32)  # [T, R]
    tile = load(of(x, row, head, x_b, x_h), tokens, x_t, there, c, C)  # [T, C]
    p = tl.where(real[:, None], tl.exp(logits - l[None, :]), 0.0)
    gradient = p * (dot(tile, tl.trans(grad), tl.zeros([T, R], tl.float32)) - d[None, :])
    store(of(da, row, head, da_b, da_h), gradient, tokens, da_t, there, r, R)
    dx_tile = dot(p.to(grad.dtype), grad, tl.zeros([T, C], tl.float32))
    store(of(dx, row, head, dx_b, dx_h), dx_tile, tokens, dx_t, there, c, C)


@triton.jit
@no_type_check
def running_sums(
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
def running_means(
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
