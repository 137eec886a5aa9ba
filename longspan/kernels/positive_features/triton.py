"""Positive random features in Triton: the logarithms [n, r] are made on the chip, and only phi is written.

    l_tr = x_t . W_r + shift_r - |x_t|^2 s / 2      s = 1 / sqrt(c), and W has its share of the scale already

A program owns a tile of tokens and goes through the features in blocks, twice where phi is relative to the largest
feature of a token: making l again is cheaper than keeping it. In bfloat16 W comes as two matrices, its rounded self and
the rest, since an error in l is one of phi itself. Columns of phi beyond r, which let every row begin where memory can
be read in large pieces, are 0.
"""

from typing import no_type_check  # a Triton function is no Python function, and its annotations are no types

import torch
import triton
import triton.language as tl
from jaxtyping import Float, UInt8
from torch import Tensor

from longspan.kernels.ragged_linear.triton import _dot

# Tokens of a tile, features of a block and warps of a program, by bytes of a number.
SHAPES = {2: (64, 64, 4), 4: (32, 32, 8)}
TILES_EACH = 8  # tiles a program takes the maximum of


def features(
    x: Float[Tensor, "b h n c"],
    rounded: Float[Tensor, "r c"],
    rest: Float[Tensor, "r c"],
    shift: Float[Tensor, "b h r"] | None,
    mask: UInt8[Tensor, "b n"] | None,
    own: bool,
    width: int,
    least: float,
) -> tuple[Float[Tensor, "b h n width"], Float[Tensor, "b h n"]]:
    """phi, and with `own` the logarithm of what each token was divided by."""
    b, h, n, c = x.shape
    phi, level = x.new_empty(b, h, n, width), x.new_empty(b, h, n, dtype=torch.float32)
    how = _launch(x)
    _features[(b * h, triton.cdiv(n, how["T"]))](
        x, rounded, rest, shift, mask, phi, level, h, n, rounded.shape[0], width, c**-0.5, least, *x.stride()[:3],
        SHIFTED=shift is not None, MASKED=mask is not None, OWN=own, **how,
    )  # fmt: skip
    return phi, level


def largest(
    x: Float[Tensor, "b h m c"],
    rounded: Float[Tensor, "r c"],
    rest: Float[Tensor, "r c"],
    mask: UInt8[Tensor, "b m"] | None,
    least: float,
) -> Float[Tensor, "b h r"]:
    """The maximum of each logarithm over all keys."""
    b, h, m, c = x.shape
    how = _launch(x)
    parts = -(-m // (how["T"] * TILES_EACH))
    found = x.new_empty(parts, b, h, rounded.shape[0], dtype=torch.float32)
    _largest[(b * h, parts)](
        x, rounded, rest, mask, found, h, m, rounded.shape[0], how["T"] * TILES_EACH, c**-0.5, least, *x.stride()[:3],
        MASKED=mask is not None, **how,
    )  # fmt: skip
    return found.amax(dim=0)


def back(
    dphi: Float[Tensor, "b h n width"],
    phi: Float[Tensor, "b h n width"],
    x: Float[Tensor, "b h n c"],
    rounded: Float[Tensor, "r c"],
    dx: Float[Tensor, "b h n c"],
) -> None:
    b, h, n, c = x.shape
    how = _launch(x)
    _back[(b * h, triton.cdiv(n, how["T"]))](
        dphi, phi, x, rounded, dx, h, n, rounded.shape[0], phi.shape[3], c**-0.5, *x.stride()[:3],
        *dx.stride()[:3], *dphi.stride()[:3], **how,
    )  # fmt: skip


def _launch(x: Float[Tensor, "b h n c"]) -> dict[str, int]:
    T, B, warps = SHAPES[x.element_size()]
    return {"c": x.shape[3], "C": max(16, 1 << (x.shape[3] - 1).bit_length()), "T": T, "B": B, "num_warps": warps}


@triton.jit
@no_type_check
def _features(
    x, rounded, rest, shift, mask, phi, level, heads, n, r, width, scale, least, x_b, x_h, x_t,
    c: tl.constexpr, C: tl.constexpr, T: tl.constexpr, B: tl.constexpr,
    SHIFTED: tl.constexpr, MASKED: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    pair, tokens = tl.program_id(0).to(tl.int64), tl.program_id(1) * T + tl.arange(0, T)
    there = _there(mask, pair // heads, tokens, n, MASKED)
    x = _load(x, pair, heads, tokens, there, x_b, x_h, x_t, c, C)  # [T, C]
    single = x.to(tl.float32)
    norm = tl.sum(single * single, axis=1) * (scale / 2)  # [T]
    top = norm
    if OWN:
        top = tl.full([T], least, tl.float32)
        for start in range(0, r, B):
            columns = start + tl.arange(0, B)
            logs = _logs(x, rounded, rest, columns, r, c, C)
            if SHIFTED:
                logs += tl.load(shift + pair * r + columns, mask=columns < r, other=0.0)[None, :]
            top = tl.maximum(top, tl.max(tl.where((columns < r)[None, :], logs, least), axis=1))
        tl.store(level + pair * n + tokens, tl.where(there, tl.maximum(top - norm, least), least), mask=tokens < n)
    for start in range(0, width, B):
        columns = start + tl.arange(0, B)
        logs = _logs(x, rounded, rest, columns, r, c, C)
        if SHIFTED:
            logs += tl.load(shift + pair * r + columns, mask=columns < r, other=0.0)[None, :]
        below = tl.minimum(logs - top[:, None], 0.0)  # the maximum was rounded too, by another program
        found = tl.where(there[:, None] & (columns < r)[None, :], tl.exp(below), 0.0)
        at = (pair * n + tokens)[:, None] * width + columns[None, :]
        tl.store(phi + at, found.to(phi.dtype.element_ty), mask=(tokens < n)[:, None] & (columns < width)[None, :])


@triton.jit
@no_type_check
def _largest(
    x, rounded, rest, mask, found, heads, n, r, share, scale, least, x_b, x_h, x_t,
    c: tl.constexpr, C: tl.constexpr, T: tl.constexpr, B: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    pair, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * share
    for block in range(0, r, B):
        columns = block + tl.arange(0, B)
        top = tl.full([B], least, tl.float32)
        for start in range(first, tl.minimum(first + share, n), T):
            tokens = start + tl.arange(0, T)
            there = _there(mask, pair // heads, tokens, n, MASKED)
            tile = _load(x, pair, heads, tokens, there, x_b, x_h, x_t, c, C)  # [T, C]
            single = tile.to(tl.float32)
            norm = tl.sum(single * single, axis=1) * (scale / 2)
            logs = _logs(tile, rounded, rest, columns, r, c, C) - norm[:, None]
            top = tl.maximum(top, tl.max(tl.where(there[:, None], logs, least), axis=0))
        place = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + pair
        tl.store(found + place * r + columns, top, mask=columns < r)


@triton.jit
@no_type_check
def _back(
    dphi, phi, x, rounded, dx, heads, n, r, width, scale, x_b, x_h, x_t, dx_b, dx_h, dx_t, g_b, g_h, g_t,
    c: tl.constexpr, C: tl.constexpr, T: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    pair, tokens = tl.program_id(0).to(tl.int64), tl.program_id(1) * T + tl.arange(0, T)
    row, head = pair // heads, pair % heads
    gradient, total = tl.zeros([T, C], tl.float32), tl.zeros([T], tl.float32)
    for start in range(0, r, B):
        columns = start + tl.arange(0, B)
        real = (tokens < n)[:, None] & (columns < r)[None, :]
        at = (pair * n + tokens)[:, None] * width + columns[None, :]
        dphi_at = row * g_b + head * g_h + (tokens.to(tl.int64) * g_t)[:, None] + columns[None, :]
        g = tl.load(phi + at, mask=real, other=0.0).to(tl.float32)
        g *= tl.load(dphi + dphi_at, mask=real, other=0.0).to(tl.float32)  # of the logarithms [T, B]
        W = _block(rounded, columns, r, c, C)
        gradient = _dot(g.to(W.dtype), W, gradient)
        total += tl.sum(g, axis=1)
    own = _load(x, pair, heads, tokens, tokens < n, x_b, x_h, x_t, c, C).to(tl.float32)
    gradient -= own * (total * scale)[:, None]
    channels = tl.arange(0, C)
    at = row * dx_b + head * dx_h + (tokens.to(tl.int64) * dx_t)[:, None] + channels[None, :]
    tl.store(dx + at, gradient.to(dx.dtype.element_ty), mask=(tokens < n)[:, None] & (channels < c)[None, :])


@triton.jit
@no_type_check
def _there(mask, row, tokens, n, MASKED: tl.constexpr):
    there = tokens < n
    if MASKED:
        there = there & (tl.load(mask + row * n + tokens, mask=there, other=0) != 0)
    return there


@triton.jit
@no_type_check
def _load(x, pair, heads, tokens, there, x_b, x_h, x_t, c: tl.constexpr, C: tl.constexpr):
    channels = tl.arange(0, C)
    at = (pair // heads) * x_b + (pair % heads) * x_h + (tokens.to(tl.int64) * x_t)[:, None] + channels[None, :]
    return tl.load(x + at, mask=there[:, None] & (channels < c)[None, :], other=0.0)


@triton.jit
@no_type_check
def _logs(x, rounded, rest, columns, r, c: tl.constexpr, C: tl.constexpr):
    """x W^T [T, B] for some columns."""
    logs = tl.dot(x, tl.trans(_block(rounded, columns, r, c, C)), input_precision="ieee")
    if x.dtype != tl.float32:
        logs = tl.dot(x, tl.trans(_block(rest, columns, r, c, C)), logs)
    return logs


@triton.jit
@no_type_check
def _block(W, columns, r, c: tl.constexpr, C: tl.constexpr):
    """Rows of W [B, C], 0 beyond the last."""
    channels = tl.arange(0, C)
    real = (columns < r)[:, None] & (channels < c)[None, :]
    return tl.load(W + columns[:, None] * c + channels[None, :], mask=real, other=0.0)
