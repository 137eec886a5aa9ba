"""Softmax pooling in Triton: the logits of a tile of tokens become weights on the chip, and none is written.

    forward     s_r = sum_j p_jr x_j      p_jr = exp(a_jr - lse_r), by the online softmax
    backward    da_jr = p_jr (ds_r . x_j - delta_r)      dx_j = sum_r p_jr ds_r      delta_r = ds_r . s_r

A program owns a part of one row of one head; parts have means and log-sum-exps of their own, and the mean of a row is
that of its parts with the weights softmax(lse). In the backward pass every tile of tokens is a program of its own.
"""

from typing import no_type_check  # a Triton function is no Python function, and its annotations are no types

import torch
import triton
import triton.language as tl
from jaxtyping import Float, UInt8
from torch import Tensor

from longspan.kernels.launch import ceil, empty_like, next_power_of_2, strides
from longspan.kernels.tiles import dot, load, of, store, visible

TILE = {2: 128, 4: 32}  # tokens, by bytes of a number
TILES_EACH = 4  # tiles of a part at least
PROGRAMS = 512  # about as many as the largest GPUs hold at once


def forward(
    a: Float[Tensor, "b h n r"], x: Float[Tensor, "b h n c"], mask: UInt8[Tensor, "b n"] | None
) -> tuple[Float[Tensor, "b h r c"], Float[Tensor, "b h r"]]:
    (b, h, n, c), r = x.shape, a.shape[3]
    how = launch(n, r, c, x.element_size())
    parts = max(1, min(ceil(PROGRAMS, b * h), ceil(n, TILES_EACH * how["T"])))
    share = ceil(ceil(n, how["T"]), parts) * how["T"]
    s = x.new_empty(parts, b, h, r, c, dtype=torch.float32 if parts > 1 else x.dtype)
    lse = x.new_empty(parts, b, h, r, dtype=torch.float32)
    _forward[(b * h, parts)](a, x, mask, s, lse, h, n, share, *strides(a, x), MASKED=mask is not None, **how)
    if parts == 1:
        return s[0], lse[0]
    return (s * lse.softmax(dim=0)[..., None]).sum(dim=0).to(x.dtype), lse.logsumexp(dim=0)


def backward(
    ds: Float[Tensor, "b h r c"],
    delta: Float[Tensor, "b h r"],
    lse: Float[Tensor, "b h r"],
    a: Float[Tensor, "b h n r"],
    x: Float[Tensor, "b h n c"],
    mask: UInt8[Tensor, "b n"] | None,
) -> tuple[Float[Tensor, "b h n r"], Float[Tensor, "b h n c"]]:
    (b, h, n, c), r = x.shape, a.shape[3]
    da, dx = empty_like(a, r, a.dtype), empty_like(x, c, x.dtype)
    how = launch(n, r, c, x.element_size())
    _backward[(b * h, ceil(n, how["T"]))](
        ds, delta, lse, a, x, mask, da, dx, h, n, *strides(a, x, da, dx), MASKED=mask is not None, **how
    )
    return da, dx


def launch(n: int, r: int, c: int, size: int) -> dict[str, int]:
    T = min(TILE[size], next_power_of_2(n))
    warps = 2 * size if T > 16 else 1
    return {"r": r, "c": c, "R": next_power_of_2(r), "C": next_power_of_2(c), "T": T, "num_warps": warps}


@triton.jit
@no_type_check
def _forward(
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
def _backward(
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
