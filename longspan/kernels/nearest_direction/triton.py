"""The nearest direction in Triton: a program has some rows, a token and a hash each, and all their directions at once.

The largest of [u, -u] is the largest |u|; of the places where u or -u reaches it, the first counts.
"""

from typing import no_type_check  # a Triton function is no Python function, and its annotations are no types

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

NUMBERS = 4_096  # of a program


def nearest_direction(
    u: Float[Tensor, "*n m half"], factors: list[int], offset: Float[Tensor, "m half"] | None
) -> Int[Tensor, "*n m"]:
    (m, half), (one, other) = u.shape[-2:], (*factors, 0)[:2]
    found, (T, H) = u.new_empty(u.shape[:-1], dtype=torch.long), rows_of(half)
    _nearest_direction[(triton.cdiv(found.numel(), T),)](
        u, u if offset is None else offset, found, found.numel(), m,
        half=half, one=one, other=other, T=T, H=H, OFFSET=offset is not None,
    )  # fmt: skip
    return found


def rows_of(half: int) -> tuple[int, int]:
    """How many rows a program has, and how many directions, filled up to a power of two."""
    filled = 1 << (half - 1).bit_length()
    return max(1, NUMBERS // filled), filled


@triton.jit
@no_type_check
def _nearest_direction(
    u, offset, found, rows, m, half: tl.constexpr, one: tl.constexpr, other: tl.constexpr,
    T: tl.constexpr, H: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0).to(tl.int64) * T + tl.arange(0, T), tl.arange(0, H)
    real = (row < rows)[:, None] & (column < half)[None, :]
    total = tl.load(u + (row * half)[:, None] + column[None, :], mask=real, other=0.0)  # [T, H]
    if OFFSET:
        total += tl.load(offset + (row % m * half)[:, None] + column[None, :], mask=real, other=0.0)
    bucket = _first_of_largest(total, column, 0, one)
    if other:
        bucket = other * bucket + _first_of_largest(total, column, one // 2, other)
    tl.store(found + row, bucket.to(tl.int64), mask=row < rows)


@triton.jit
@no_type_check
def _first_of_largest(total, column, begin: tl.constexpr, factor: tl.constexpr):
    """argmax [u, -u] of the directions from `begin` on [T]."""
    index, opposites = column - begin, factor // 2
    inside = ((index >= 0) & (index < opposites))[None, :]
    largest = tl.max(tl.where(inside, tl.abs(total), -1.0), axis=1)[:, None]
    place = tl.where(-total == largest, index[None, :] + opposites, factor - 1)  # the last where u is no number
    place = tl.where(total == largest, index[None, :], place)
    return tl.min(tl.where(inside, place, factor - 1), axis=1)
