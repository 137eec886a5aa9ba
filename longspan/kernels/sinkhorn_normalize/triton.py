"""Sinkhorn normalisation in Triton: a launch for each half of an iteration, since rows need all columns and vice versa.

A program owns a strip of the matrix, some rows or some columns, and reads along it.

    forward     the log-sum-exp of the strip, online
    backward    g <- g - P sum(g), the sum along the strip, P = exp(x - r - c) after this half of the iteration
"""

from typing import no_type_check  # Triton functions are not Python functions, nor are their annotations types

import torch
import triton
import triton.language as tl
from jaxtyping import Float, UInt8
from torch import Tensor

from longspan.kernels.launch import ceil

STRIP, STEP = 32, 64  # elements across a strip, and along it at a time


def forward(
    x: Float[Tensor, "b h u v"], allowed: UInt8[Tensor, "_b 1 u v"], iterations: int
) -> tuple[Float[Tensor, "b h u v"], Float[Tensor, "i b h u"], Float[Tensor, "i b h v"]]:
    b, h, u, v = x.shape
    s, rows, columns = torch.empty_like(x), x.new_empty(iterations, b, h, u), x.new_empty(iterations, b, h, v)
    latest = x.new_zeros(b, h, v)
    for r, c in zip(rows, columns, strict=True):
        _lse[_strips(x, u)](x, allowed, latest, r, h, u, v, _row_stride(allowed), True, STRIP, STEP)
        _lse[_strips(x, v)](x, allowed, r, c, h, v, u, _row_stride(allowed), False, STRIP, STEP)
        latest = c
    _normalized[_strips(x, u)](x, allowed, rows[-1], latest, s, h, u, v, _row_stride(allowed), STRIP, STEP)
    return s, rows, columns


def backward(
    g: Float[Tensor, "b h u v"],
    x: Float[Tensor, "b h u v"],
    allowed: UInt8[Tensor, "_b 1 u v"],
    rows: Float[Tensor, "i b h u"],
    columns: Float[Tensor, "i b h v"],
) -> Float[Tensor, "b h u v"]:
    """The gradient of x, from that of log S, which it overwrites."""
    _, h, u, v = x.shape
    before = [torch.zeros_like(columns[0]), *columns[:-1]]  # the columns that each iteration began with
    for r, c, earlier in reversed(list(zip(rows, columns, before, strict=True))):
        _backward[_strips(x, v)](g, x, allowed, r, c, h, v, u, _row_stride(allowed), False, STRIP, STEP)
        _backward[_strips(x, u)](g, x, allowed, earlier, r, h, u, v, _row_stride(allowed), True, STRIP, STEP)
    return g


def _strips(x: Float[Tensor, "b h u v"], own: int) -> tuple[int, int]:
    return ceil(own, STRIP), x.shape[0] * x.shape[1]


def _row_stride(allowed: UInt8[Tensor, "_b 1 u v"]) -> int:
    """The stride from row to row of the batch, 0 where all share one matrix."""
    return 0 if len(allowed) == 1 else allowed.stride(0)


@triton.jit
@no_type_check
def _lse(
    x, allowed, other, own, heads, n, m, row_stride, ROWS: tl.constexpr, T: tl.constexpr, W: tl.constexpr
):  # fmt: skip
    pair, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * T + tl.arange(0, T)
    top, total = tl.full([T], -1e30, tl.float32), tl.zeros([T], tl.float32)
    for start in range(0, m, W):
        numbers, seen, _, _ = _tile(x, allowed, other, pair, heads, at, start, n, m, row_stride, ROWS, W)  # [T, W]
        higher = tl.maximum(top, tl.max(tl.where(seen, numbers, -1e30), axis=1))
        total = total * tl.exp(top - higher) + tl.sum(tl.where(seen, tl.exp(numbers - higher[:, None]), 0.0), axis=1)
        top = higher
    lse = tl.where(total > 0, top + tl.log(tl.where(total > 0, total, 1.0)), 0.0)
    tl.store(own + pair * n + at, lse, mask=at < n)


@triton.jit
@no_type_check
def _normalized(x, allowed, rows, columns, s, heads, n, m, row_stride, T: tl.constexpr, W: tl.constexpr):
    pair, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * T + tl.arange(0, T)
    lse = tl.load(rows + pair * n + at, mask=at < n, other=0.0)
    for start in range(0, m, W):
        numbers, seen, place, there = _tile(x, allowed, columns, pair, heads, at, start, n, m, row_stride, True, W)
        tl.store(s + place, tl.where(seen, tl.exp(numbers - lse[:, None]), 0.0), mask=there)


@triton.jit
@no_type_check
def _backward(
    g, x, allowed, other, own, heads, n, m, row_stride, ROWS: tl.constexpr, T: tl.constexpr, W: tl.constexpr
):  # fmt: skip
    pair, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * T + tl.arange(0, T)
    lse = tl.load(own + pair * n + at, mask=at < n, other=0.0)
    total = tl.zeros([T], tl.float32)
    for start in range(0, m, W):
        _, _, place, there = _tile(x, allowed, other, pair, heads, at, start, n, m, row_stride, ROWS, W)
        total += tl.sum(tl.load(g + place, mask=there, other=0.0), axis=1)
    for start in range(0, m, W):
        numbers, seen, place, there = _tile(x, allowed, other, pair, heads, at, start, n, m, row_stride, ROWS, W)
        p = tl.where(seen, tl.exp(numbers - lse[:, None]), 0.0)
        tl.store(g + place, tl.load(g + place, mask=there, other=0.0) - p * total[:, None], mask=there)


@triton.jit
@no_type_check
def _tile(x, allowed, other, pair, heads, at, start, n, m, row_stride, ROWS: tl.constexpr, W: tl.constexpr):
    """A strip [T, W] minus the log-sum-exps of what crosses it; which are allowed, where they lie, which exist."""
    beside = start + tl.arange(0, W)
    there = (at < n)[:, None] & (beside < m)[None, :]
    if ROWS:
        inside = at[:, None] * m + beside[None, :]
    else:
        inside = at[:, None] + beside[None, :] * n
    place = pair * n * m + inside
    seen = tl.load(allowed + pair // heads * row_stride + inside, mask=there, other=0) != 0
    across = tl.load(other + pair * m + beside, mask=beside < m, other=0.0)
    return tl.load(x + place, mask=there, other=0.0) - across[None, :], seen, place, there
