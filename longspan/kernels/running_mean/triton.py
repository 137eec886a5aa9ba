"""Running mean in Triton: sums of tiles first, then every tile by itself, with the sum of all tiles before it.

The way back is the same in the other direction: dx_s = sum_{t >= s} dm_t / count_t, so that counts divide what comes in
and not what goes out, and a hidden token gets nothing instead of giving nothing.
"""

from typing import no_type_check  # a Triton function is no Python function, and its annotations are no types

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.launch import ceil, empty_like, next_power_of_2
from longspan.kernels.running_sum import before, running_sum
from longspan.kernels.tiles import load, store

NUMBERS = 4_096  # of a tile


def running_mean(x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None, back: bool) -> Float[Tensor, "b h n c"]:
    b, h, n, c = x.shape
    C = next_power_of_2(c)
    T = max(16, NUMBERS // C)
    counts = None if mask is None else mask.cumsum(dim=1, dtype=torch.int32).clamp(min=1)
    beside = (None if mask is None else mask.view(torch.uint8), counts)
    sums, y = x.new_empty(b, h, ceil(n, T), c, dtype=torch.float32), empty_like(x, c, x.dtype)
    how = {"c": c, "C": C, "T": T, "BACK": back, "MASKED": mask is not None, "num_warps": 4}
    _sums[(sums.shape[2], b * h)](x, *beside, sums, h, n, *x.stride()[:3], **how)
    sums = sums.flip(2) if back else sums
    sums = before(running_sum(sums)[..., None, :])[..., 0, :]
    sums = sums.flip(2) if back else sums
    _means[(sums.shape[2], b * h)](x, *beside, sums.contiguous(), y, h, n, *x.stride()[:3], *y.stride()[:3], **how)
    return y


@triton.jit
@no_type_check
def _sums(
    x, mask, counts, sums, heads, n, x_b, x_h, x_t, c: tl.constexpr, C: tl.constexpr, T: tl.constexpr,
    BACK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(1).to(tl.int64)
    tile, _, _ = _come_in(x, mask, counts, pair, heads, n, x_b, x_h, x_t, c, C, T, BACK, MASKED)
    channels = tl.arange(0, C)
    at = (pair * tl.num_programs(0) + tl.program_id(0)) * c + channels
    tl.store(sums + at, tl.sum(tile, axis=0), mask=channels < c)


@triton.jit
@no_type_check
def _means(
    x, mask, counts, sums, y, heads, n, x_b, x_h, x_t, y_b, y_h, y_t, c: tl.constexpr, C: tl.constexpr,
    T: tl.constexpr, BACK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(1).to(tl.int64)
    tile, real, count = _come_in(x, mask, counts, pair, heads, n, x_b, x_h, x_t, c, C, T, BACK, MASKED)
    channels = tl.arange(0, C)
    at = (pair * tl.num_programs(0) + tl.program_id(0)) * c + channels
    found = tl.cumsum(tile, axis=0, reverse=BACK) + tl.load(sums + at, mask=channels < c, other=0.0)[None, :]
    if BACK:
        found = tl.where(real[:, None], found, 0.0)
    else:
        found = found / count[:, None]
    tokens = tl.program_id(0) * T + tl.arange(0, T)
    store(y + pair // heads * y_b + pair % heads * y_h, found, tokens, y_t, tokens < n, c, C)


@triton.jit
@no_type_check
def _come_in(
    x, mask, counts, pair, heads, n, x_b, x_h, x_t, c: tl.constexpr, C: tl.constexpr, T: tl.constexpr,
    BACK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """What is summed up of a tile [T, C], which of its tokens are real, and how many there are up to each."""
    row, tokens = pair // heads, tl.program_id(0) * T + tl.arange(0, T)
    real, count = tokens < n, (tokens + 1).to(tl.float32)
    if MASKED:
        count = tl.load(counts + row * n + tokens, mask=real, other=1).to(tl.float32)
        real = real & (tl.load(mask + row * n + tokens, mask=real, other=0) != 0)
    tile = load(x + row * x_b + pair % heads * x_h, tokens, x_t, tokens < n, c, C).to(tl.float32)
    if BACK:
        tile = tile / count[:, None]
    else:
        tile = tl.where(real[:, None], tile, 0.0)
    return tile, real, count
