"""Sums over the weights of a chunk in Triton: a program has one chunk, its pairs on chip, and takes slot after slot."""

from typing import no_type_check  # a Triton function is no Python function, and its annotations are no types

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

WARPS = 4  # for the 64 x 64 pairs of a chunk


def rows(
    x: Float[Tensor, "n c c"] | None, a: Float[Tensor, "n c r"], m: Float[Tensor, "n c r"]
) -> tuple[Float[Tensor, "n c r"], Float[Tensor, "n c r"]]:
    t, z = torch.empty_like(a), torch.empty_like(a)
    _rows[(len(a),)](a if x is None else x, a, m, t, z, a.shape[2], WITH_X=x is not None, **_shape(a))
    return t, z


def pairs(p: Float[Tensor, "n c r"], a: Float[Tensor, "n c r"], m: Float[Tensor, "n c r"]) -> Float[Tensor, "n c c"]:
    g = a.new_empty(*a.shape[:2], a.shape[1])
    _pairs[(len(a),)](p, a, m, g, a.shape[2], **_shape(a))
    return g


def keys(
    u: Float[Tensor, "n c r"] | None,
    x: Float[Tensor, "n c c"] | None,
    z: Float[Tensor, "n c r"] | None,
    a: Float[Tensor, "n c r"],
    m: Float[Tensor, "n c r"],
) -> Float[Tensor, "n c r"]:
    da = torch.empty_like(a)
    given = {"WITH_X": x is not None, "WITH_Z": z is not None}
    u, x, z = (a if one is None else one for one in (u, x, z))  # any pointer does where none is read
    _keys[(len(a),)](u, x, z, a, m, da, a.shape[2], **given, **_shape(a))
    return da


def _shape(a: Float[Tensor, "n c r"]) -> dict:
    return {"C": a.shape[1], "num_warps": WARPS}


@triton.jit
@no_type_check
def _rows(x, a, m, total, sums, r, WITH_X: tl.constexpr, C: tl.constexpr):
    chunk = tl.program_id(0).to(tl.int64)
    t, s = tl.arange(0, C), tl.arange(0, C)
    if WITH_X:
        pair = tl.load(x + chunk * C * C + t[:, None] * C + s[None, :])  # [C, C]
    for f in range(r):
        w = _weights(a, m, chunk, f, r, C)
        to = chunk * C * r + t * r + f
        tl.store(sums + to, tl.sum(w, axis=1))
        if WITH_X:
            tl.store(total + to, tl.sum(pair * w, axis=1))


@triton.jit
@no_type_check
def _pairs(p, a, m, g, r, C: tl.constexpr):
    chunk = tl.program_id(0).to(tl.int64)
    t, s = tl.arange(0, C), tl.arange(0, C)
    total = tl.zeros([C, C], tl.float32)
    for f in range(r):
        total += tl.load(p + chunk * C * r + t * r + f)[:, None] * _weights(a, m, chunk, f, r, C)
    tl.store(g + chunk * C * C + t[:, None] * C + s[None, :], total)


@triton.jit
@no_type_check
def _keys(u, x, z, a, m, da, r, WITH_X: tl.constexpr, WITH_Z: tl.constexpr, C: tl.constexpr):
    chunk = tl.program_id(0).to(tl.int64)
    t, s = tl.arange(0, C), tl.arange(0, C)
    if WITH_X:
        pair = tl.load(x + chunk * C * C + t[:, None] * C + s[None, :])  # [C, C]
    for f in range(r):
        w = _weights(a, m, chunk, f, r, C)
        at = chunk * C * r + t * r + f
        total = tl.zeros([C], tl.float32)
        if WITH_X:
            total += tl.sum(tl.load(u + at)[:, None] * pair * w, axis=0)
        if WITH_Z:
            total += tl.sum(tl.load(z + at)[:, None] * w, axis=0)
        tl.store(da + chunk * C * r + s * r + f, total)


@triton.jit
@no_type_check
def _weights(a, m, chunk, f, r, C: tl.constexpr):
    """exp(a_s - m_t) for s <= t, else 0: [C, C]."""
    t, s = tl.arange(0, C), tl.arange(0, C)
    a_s, m_t = tl.load(a + chunk * C * r + s * r + f), tl.load(m + chunk * C * r + t * r + f)
    return tl.where(s[None, :] <= t[:, None], tl.exp(a_s[None, :] - m_t[:, None]), 0.0)
