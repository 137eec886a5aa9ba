"""Attention by features in Triton: features, sums and quotient without a tensor between, causal or not.

With u_s = (v_s, 1), the sums of a row and head are one matrix M [e+1, r], S above z, and d_t the denominator of y_t.

    forth   M_t = sum_s u_s phi(k_s)^T      (y_t d_t, d_t) = M_t phi(q_t)
    back    w_t = (dy_t, -dy_t . y_t) / d_t      N_s = sum_t w_t phi(q_t)^T
            dphi(q_t) = M_t^T w_t      dphi(k_s) = N_s^T u_s      du_s = N_s phi(k_s)

where t sees all s, or in the causal form s <= t. Rows are cut into parts, each of several tiles, and a program owns one
part of one head. First every part is summed by itself; the sums of the parts before it (after it, on the way back) are
what a causal part begins with. Then it goes through its tiles with M in registers: pairs within a tile by a product
that is masked, all others through M. So a causal pass reads keys and values twice and writes next to nothing else.

Features wider than a program can hold come in slices, each of which adds its numerators and denominators to those of
the one before it; the last one divides.

With levels the pair (t, s) is weighted by exp(a_s - m_t), where m never falls and a_s <= m_s. M is kept relative to the
level of the last token it has seen, N to that of the last token it has not, so that no exponent is positive.

Tiles of bfloat16 meet in tensor cores. A matrix of sums goes in as two of them, its rounded self and the rest, and so
keeps its precision. Products of float32 are not rounded at all. No two runs differ.
"""

from typing import (  # a Triton function is no Python function, and its annotations are no types
    NamedTuple,
    no_type_check,
)

import torch
import triton
import triton.language as tl
from jaxtyping import Float, UInt8
from torch import Tensor

from longspan.kernels.chunk_states import before, fading_sum
from longspan.kernels.feature_attention.shapes import BACK, FORTH, Shape
from longspan.kernels.ragged_linear.triton import _dot, _dot_sums


class Beside(NamedTuple):
    """What lies beside queries and keys, where it does; each without gaps."""

    query_angles: Float[Tensor, "b n"] | None
    key_angles: Float[Tensor, "b m"] | None
    mask: UInt8[Tensor, "b m"] | None
    a: Float[Tensor, "b h m"] | None
    m: Float[Tensor, "b h m"] | None

    def pointers(self, nothing: Tensor) -> list[Tensor]:
        """What is not there becomes a tensor that nobody looks at, since a Triton function cannot return None."""
        return [nothing if x is None else x for x in self]

    @property
    def flags(self) -> dict[str, bool]:
        return {"LEVELS": self.m is not None, "MASKED": self.mask is not None}


def sum_keys(
    shape: Shape, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], beside: Beside
) -> Float[Tensor, "p b h e1 r"]:
    """M as each causal part finds it; not causal, the one of whole rows."""
    (*pairs, m), parts = k.shape[:3], shape.parts(k.shape[2])
    sums = k.new_empty(parts, *pairs, shape.E + 1, shape.R, dtype=torch.float32)
    _sum_keys[(shape.pairs, parts)](
        k, v, sums, pairs[1], m, shape.share(m), *beside.pointers(sums)[1:], *_strides(k, v),
        **beside.flags, **shape.constants(FORTH),
    )  # fmt: skip
    return _before(sums, _ends(shape, beside.m)) if shape.causal else sums.sum(dim=0, keepdim=True)


def read(
    shape: Shape,
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    beside: Beside,
    sums: Float[Tensor, "p b h e1 r"],
    y: Float[Tensor, "b h n e"],
    d: Float[Tensor, "b h n"],
    partial: Float[Tensor, "b h n e"],
) -> None:
    """Fill in y and d: the last slice the quotient, others what the next one adds to, y in `partial`."""
    heads, n = q.shape[1:3]
    _read[(shape.pairs, shape.parts(n))](
        q, k, v, sums, y, d, partial, heads, n, shape.share(n), shape.eps, shape.floor, *beside.pointers(sums),
        *_strides(q, k, v, y, partial), **beside.flags, **shape.flags, **shape.constants(FORTH),
    )  # fmt: skip


def back_to_queries(
    shape: Shape,
    dy: Float[Tensor, "b h n e"],
    dd: Float[Tensor, "b h n"],
    given: bool,
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    beside: Beside,
    sums: Float[Tensor, "p b h e1 r"],
    d: Float[Tensor, "b h n"],
    dq: Float[Tensor, "b h n c"],
) -> Float[Tensor, "p b h e1 r"]:
    """Fill in dq and, unless it is given, dd, the last entry of every w; gives N as each causal part finds it, or of
    whole rows."""
    (heads, n), parts = q.shape[1:3], shape.parts(q.shape[2])
    dsums = sums.new_empty(parts, *q.shape[:2], *sums.shape[3:])
    _back_to_queries[(shape.pairs, parts)](
        dy, q, k, v, sums, d, dq, dd, dsums, heads, n, shape.share(n), shape.floor, *beside.pointers(sums),
        *_strides(dy, q, k, v, dq), GIVEN=given, CAUSAL=shape.causal, **beside.flags, **shape.constants(BACK),
    )  # fmt: skip
    if not shape.causal:
        return dsums.sum(dim=0, keepdim=True)
    levels = _ends(shape, beside.m)
    if levels is not None and beside.m is not None:  # a part is relative to the end of the one before it
        levels = -torch.cat([beside.m[..., :1], levels[..., :-1]], dim=-1).flip(-1)
    return _before(dsums.flip(0), levels).flip(0)


def back_to_keys(
    shape: Shape,
    dy: Float[Tensor, "b h n e"],
    dd: Float[Tensor, "b h n"],
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    beside: Beside,
    dsums: Float[Tensor, "p b h e1 r"],
    d: Float[Tensor, "b h n"],
    dk: Float[Tensor, "b h m c"],
    dv: Float[Tensor, "b h m e"],
    partial: Float[Tensor, "b h m e"],
) -> None:
    """Fill in dk and, with the last slice, dv; others leave in `partial` what the next one adds to."""
    heads, m = k.shape[1:3]
    _back_to_keys[(shape.pairs, shape.parts(m))](
        dy, q, k, v, dsums, d, dd, dk, dv, partial, heads, m, shape.share(m), *beside.pointers(dsums),
        *_strides(dy, q, k, v, dk, dv, partial), **beside.flags, **shape.flags, **shape.constants(BACK),
    )  # fmt: skip


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for x in tensors for stride in x.stride()[:3]]


def _ends(shape: Shape, m: Tensor | None) -> Float[Tensor, "b h p"] | None:
    """The level at the end of each part."""
    if m is None:
        return None
    n = m.shape[2]
    share = shape.share(n)
    ends = torch.arange(share, share * shape.parts(n) + 1, share, device=m.device).clamp(max=n) - 1
    return m[:, :, ends]


def _before(sums: Float[Tensor, "p b h e1 r"], levels: Float[Tensor, "b h p"] | None) -> Float[Tensor, "p b h e1 r"]:
    """The sums of all earlier parts, relative to the level of the last of them."""
    sums = sums.movedim(0, 2)
    decay = None
    if levels is not None:
        decay = torch.cat([torch.zeros_like(levels[..., :1]), levels[..., :-1] - levels[..., 1:]], dim=-1)[..., None]
    return before(fading_sum(sums, decay)).movedim(2, 0).contiguous()


@triton.jit
@no_type_check
def _sum_keys(
    k, v, sums, heads, n, share, k_angles, mask, a, m, k_b, k_h, k_t, v_b, v_h, v_t,
    c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, R: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
    FEATURE: tl.constexpr, LEVELS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    row, head, first, last = _part(heads, n, share)
    k, v = _of(k, row, head, k_b, k_h), _of(v, row, head, v_b, v_h)
    k_angles, mask, a, m = _of_keys(k_angles, mask, a, m, row, n, FEATURE, LEVELS, MASKED)
    S, z = tl.zeros([E, R], tl.float32), tl.zeros([R], tl.float32)
    level = _level(m, first, n, LEVELS)
    for start in range(first, last, T):
        fk = _features(k, k_angles, mask, start, last, k_t, c, C, R, T, FEATURE, MASKED)  # [T, R]
        u = _values(v, mask, start, last, v_t, e, E, T, MASKED)  # [T, E]
        S, z, level = _pass(S, z, level, u, fk, a, m, start, last, T, LEVELS)
    _store_sums(sums, S, z, R, E)


@triton.jit
@no_type_check
def _read(
    q, k, v, sums, y, d, partial, heads, n, share, eps, floor, q_angles, k_angles, mask, a, m,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, y_b, y_h, y_t, p_b, p_h, p_t,
    c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, R: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
    FEATURE: tl.constexpr, LEVELS: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, FIRST: tl.constexpr,
    LAST: tl.constexpr,
):  # fmt: skip
    row, head, first, last = _part(heads, n, share)
    q, y, d = _of(q, row, head, q_b, q_h), _of(y, row, head, y_b, y_h), d + tl.program_id(0).to(tl.int64) * n
    k, v = _of(k, row, head, k_b, k_h), _of(v, row, head, v_b, v_h)
    partial = _of(partial, row, head, p_b, p_h)
    q_angles = _of_row(q_angles, row, n, FEATURE)
    if CAUSAL:
        k_angles, mask, a, m = _of_keys(k_angles, mask, a, m, row, n, FEATURE, LEVELS, MASKED)
    S, z = _load_sums(sums, R, E, CAUSAL)
    level = _level(m, first, n, LEVELS)
    for start in range(first, last, T):
        fq = _features(q, q_angles, None, start, last, q_t, c, C, R, T, FEATURE, False)  # [T, R]
        top = _dot_sums(fq, tl.trans(S))  # [T, E]
        bottom = tl.sum(fq.to(tl.float32) * z[None, :], axis=1)  # [T]
        if CAUSAL:
            fk = _features(k, k_angles, mask, start, last, k_t, c, C, R, T, FEATURE, MASKED)
            u = _values(v, mask, start, last, v_t, e, E, T, MASKED)
            pairs, since = _fades(a, m, level, start, last, T, LEVELS)  # [T, T], [T]
            weights = (_dot(fq, tl.trans(fk), tl.zeros([T, T], tl.float32)) * pairs).to(fq.dtype)
            top = _dot(weights, u, top * since[:, None])
            bottom = bottom * since + tl.sum(weights.to(tl.float32), axis=1)
            S, z, level = _pass(S, z, level, u, fk, a, m, start, last, T, LEVELS)
        tokens = start + tl.arange(0, T)
        at, real = _tile(start, last, p_t, e, E, T)
        if not FIRST:
            top += tl.load(partial + at, mask=real, other=0.0)
            bottom += tl.load(d + tokens, mask=tokens < last, other=0.0)
        if LAST:
            bottom = tl.maximum(bottom + eps, floor)
            at, real = _tile(start, last, y_t, e, E, T)
            tl.store(y + at, (top / bottom[:, None]).to(y.dtype.element_ty), mask=real)
        else:
            tl.store(partial + at, top, mask=real)
        tl.store(d + tokens, bottom, mask=tokens < last)


@triton.jit
@no_type_check
def _back_to_queries(
    dy, q, k, v, sums, d, dq, dd, dsums, heads, n, share, floor, q_angles, k_angles, mask, a, m,
    g_b, g_h, g_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, dq_b, dq_h, dq_t,
    c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, R: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
    FEATURE: tl.constexpr, LEVELS: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
    row, head, first, last = _part(heads, n, share)
    pair = tl.program_id(0).to(tl.int64)
    dy, q, dq = _of(dy, row, head, g_b, g_h), _of(q, row, head, q_b, q_h), _of(dq, row, head, dq_b, dq_h)
    k, v, d, dd = _of(k, row, head, k_b, k_h), _of(v, row, head, v_b, v_h), d + pair * n, dd + pair * n
    q_angles = _of_row(q_angles, row, n, FEATURE)
    if CAUSAL:
        k_angles, mask, a, m = _of_keys(k_angles, mask, a, m, row, n, FEATURE, LEVELS, MASKED)
    S, z = _load_sums(sums, R, E, CAUSAL)
    dS, dz = tl.zeros([E, R], tl.float32), tl.zeros([R], tl.float32)
    level = _level(m, first, n, LEVELS)
    begin = level
    for start in range(first, last, T):
        tokens = start + tl.arange(0, T)
        fq = _features(q, q_angles, None, start, last, q_t, c, C, R, T, FEATURE, False)  # [T, R]
        w = _w(dy, d, start, last, g_t, e, E, T, fq)  # [T, E]
        g = _dot_sums(w, S)  # [T, R], all of dphi(q) that does not come through the denominator
        pairs, since = _fades(a, m, level, start, last, T, LEVELS)  # [T, T], [T]
        if CAUSAL:
            fk = _features(k, k_angles, mask, start, last, k_t, c, C, R, T, FEATURE, MASKED)
            u = _values(v, mask, start, last, v_t, e, E, T, MASKED)
            weights = (_dot(w, tl.trans(u), tl.zeros([T, T], tl.float32)) * pairs).to(fq.dtype)
            g = _dot(weights, fk, g * since[:, None])
        if GIVEN:
            w_last = tl.load(dd + tokens, mask=tokens < last, other=0.0)
        else:
            bottom = tl.load(d + tokens, mask=tokens < last, other=1.0)
            # At the floor the denominator is a constant; there bottom and floor are the same number.
            w_last = tl.where(bottom > floor, -tl.sum(fq.to(tl.float32) * g, axis=1) / bottom, 0.0)
            tl.store(dd + tokens, w_last, mask=tokens < last)
        g += (w_last * since)[:, None] * z[None, :]
        if CAUSAL:
            g = _dot((w_last[:, None] * pairs).to(fq.dtype), fk, g)
            S, z, level = _pass(S, z, level, u, fk, a, m, start, last, T, LEVELS)
        _store_gradient(dq, g, fq, q_angles, mask, start, last, dq_t, c, C, R, T, FEATURE, False)
        faded = fq
        if LEVELS:
            faded = (fq.to(tl.float32) * tl.exp(begin - _levels(m, start, last, T))[:, None]).to(fq.dtype)
        dS = _dot(tl.trans(w), faded, dS)
        dz += tl.sum(faded.to(tl.float32) * w_last[:, None], axis=0)
    _store_sums(dsums, dS, dz, R, E)


@triton.jit
@no_type_check
def _back_to_keys(
    dy, q, k, v, dsums, d, dd, dk, dv, partial, heads, n, share, q_angles, k_angles, mask, a, m,
    g_b, g_h, g_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t,
    p_b, p_h, p_t,
    c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, R: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
    FEATURE: tl.constexpr, LEVELS: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, FIRST: tl.constexpr,
    LAST: tl.constexpr,
):  # fmt: skip
    row, head, first, last = _part(heads, n, share)
    pair = tl.program_id(0).to(tl.int64)
    k, v = _of(k, row, head, k_b, k_h), _of(v, row, head, v_b, v_h)
    dk, dv, partial = _of(dk, row, head, dk_b, dk_h), _of(dv, row, head, dv_b, dv_h), _of(partial, row, head, p_b, p_h)
    k_angles, mask, a, m = _of_keys(k_angles, mask, a, m, row, n, FEATURE, LEVELS, MASKED)
    if CAUSAL:
        dy, q, d, dd = _of(dy, row, head, g_b, g_h), _of(q, row, head, q_b, q_h), d + pair * n, dd + pair * n
        q_angles = _of_row(q_angles, row, n, FEATURE)
    N, N_last = _load_sums(dsums, R, E, CAUSAL)
    tiles = tl.cdiv(tl.maximum(last - first, 0), T)
    for tile in range(tiles):
        start = first + (tiles - 1 - tile) * T  # from the end, for N grows that way
        tokens = start + tl.arange(0, T)
        fk = _features(k, k_angles, mask, start, last, k_t, c, C, R, T, FEATURE, MASKED)  # [T, R]
        u = _values(v, mask, start, last, v_t, e, E, T, MASKED)  # [T, E]
        g = _dot_sums(u, N) + N_last[None, :]  # [T, R]
        gv = _dot_sums(fk, tl.trans(N))  # [T, E]
        if CAUSAL:
            fq = _features(q, q_angles, None, start, last, q_t, c, C, R, T, FEATURE, False)
            w = _w(dy, d, start, last, g_t, e, E, T, fk)
            w_last = tl.load(dd + tokens, mask=tokens < last, other=0.0)
            pairs, _ = _fades(a, m, 0.0, start, last, T, LEVELS)  # [T of t, T of s]
            if LEVELS:
                until = tl.exp(_levels(a, start, last, T) - _end(m, start, last, T))  # to the tokens N has seen
                g, gv = g * until[:, None], gv * until[:, None]
            zeros = tl.zeros([T, T], tl.float32)
            of_values = ((_dot(w, tl.trans(u), zeros) + w_last[:, None]) * pairs).to(fk.dtype)
            of_features = (_dot(fq, tl.trans(fk), zeros) * pairs).to(fk.dtype)
            g, gv = _dot(tl.trans(of_values), fq, g), _dot(tl.trans(of_features), w, gv)
            faded = fq
            if LEVELS:
                begin = _level(m, start, n, LEVELS)
                faded = (fq.to(tl.float32) * tl.exp(begin - _levels(m, start, last, T))[:, None]).to(fq.dtype)
                fade = tl.exp(begin - _end(m, start, last, T))
                N, N_last = N * fade, N_last * fade
            N = _dot(tl.trans(w), faded, N)
            N_last += tl.sum(faded.to(tl.float32) * w_last[:, None], axis=0)
        _store_gradient(dk, g, fk, k_angles, mask, start, last, dk_t, c, C, R, T, FEATURE, MASKED)
        at, real = _tile(start, last, p_t, e, E, T)
        if not FIRST:
            gv += tl.load(partial + at, mask=real, other=0.0)
        if LAST:
            at, real = _tile(start, last, dv_t, e, E, T)
            tl.store(dv + at, gv.to(dv.dtype.element_ty), mask=real)
        else:
            tl.store(partial + at, gv, mask=real)


@triton.jit
@no_type_check
def _part(heads, n, share):
    """Row, head and tokens of this program."""
    first = tl.program_id(1) * share
    return tl.program_id(0) // heads, tl.program_id(0) % heads, first, tl.minimum(first + share, n)


@triton.jit
@no_type_check
def _of(x, row, head, row_stride, head_stride):
    return x + row.to(tl.int64) * row_stride + head.to(tl.int64) * head_stride


@triton.jit
@no_type_check
def _of_row(x, row, n, FEATURE: tl.constexpr):
    if FEATURE == "cosine":
        x += row.to(tl.int64) * n
    return x


@triton.jit
@no_type_check
def _of_keys(angles, mask, a, m, row, n, FEATURE: tl.constexpr, LEVELS: tl.constexpr, MASKED: tl.constexpr):
    """What lies beside the keys: angles and mask of a row, levels of a row and head; all without gaps."""
    if FEATURE == "cosine":
        angles += row.to(tl.int64) * n
    if MASKED:
        mask += row.to(tl.int64) * n
    if LEVELS:
        a += tl.program_id(0).to(tl.int64) * n
        m += tl.program_id(0).to(tl.int64) * n
    return angles, mask, a, m


@triton.jit
@no_type_check
def _tile(start, last, stride, c: tl.constexpr, C: tl.constexpr, T: tl.constexpr):
    """Where a tile [T, C] of tokens lies, and which of it exists."""
    tokens, channels = start + tl.arange(0, T), tl.arange(0, C)
    real = (tokens < last)[:, None] & (channels < c)[None, :]
    return (tokens.to(tl.int64) * stride)[:, None] + channels[None, :], real


@triton.jit
@no_type_check
def _features(
    x, angles, mask, start, last, stride, c: tl.constexpr, C: tl.constexpr, R: tl.constexpr, T: tl.constexpr,
    FEATURE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """phi [T, R], rounded to the type of x; 0 where no token is, which elu(0) + 1 is not."""
    tokens, columns = start + tl.arange(0, T), tl.arange(0, R)
    there = tokens < last
    if MASKED:
        there = there & (tl.load(mask + tokens, mask=there, other=0) != 0)
    channels = columns % C  # of [relu(x) cos, relu(x) sin] both halves come from the same channels
    real = there[:, None] & (channels < c)[None, :]
    at = (tokens.to(tl.int64) * stride)[:, None] + channels[None, :]
    loaded = tl.load(x + at, mask=real, other=0.0)
    single = loaded.to(tl.float32)
    if FEATURE == "elu":
        single = tl.where(single > 0, single + 1, tl.exp(tl.minimum(single, 0.0)))
    if FEATURE == "cosine":
        single = tl.maximum(single, 0.0) * _turns(angles, start, last, C, R, T)
    return tl.where(real, single, 0.0).to(loaded.dtype)


@triton.jit
@no_type_check
def _turns(angles, start, last, C: tl.constexpr, R: tl.constexpr, T: tl.constexpr):
    """cos in the first half of the columns, sin in the second [T, R]."""
    tokens = start + tl.arange(0, T)
    angle = tl.load(angles + tokens, mask=tokens < last, other=0.0)
    return tl.where((tl.arange(0, R) < C)[None, :], tl.cos(angle)[:, None], tl.sin(angle)[:, None])


@triton.jit
@no_type_check
def _store_gradient(
    x, g, phi, angles, mask, start, last, stride, c: tl.constexpr, C: tl.constexpr, R: tl.constexpr, T: tl.constexpr,
    FEATURE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The gradient g of phi [T, R] as that of x; the slope is read off phi, which is at hand, and is 0 where phi is."""
    if FEATURE == "elu":
        g = g * tl.minimum(phi.to(tl.float32), 1.0)
    if FEATURE == "cosine":  # both halves go back to the same channels
        g = tl.where(phi != 0, g * _turns(angles, start, last, C, R, T), 0.0)
        g = tl.sum(tl.reshape(g, [T, 2, C]), axis=1)
    at, real = _tile(start, last, stride, c, C, T)
    if MASKED and FEATURE == "none":
        tokens = start + tl.arange(0, T)
        g = tl.where((tl.load(mask + tokens, mask=tokens < last, other=0) != 0)[:, None], g, 0.0)
    tl.store(x + at, g.to(x.dtype.element_ty), mask=real)


@triton.jit
@no_type_check
def _values(v, mask, start, last, stride, e: tl.constexpr, E: tl.constexpr, T: tl.constexpr, MASKED: tl.constexpr):
    at, real = _tile(start, last, stride, e, E, T)
    if MASKED:
        tokens = start + tl.arange(0, T)
        real = real & (tl.load(mask + tokens, mask=tokens < last, other=0) != 0)[:, None]
    return tl.load(v + at, mask=real, other=0.0)


@triton.jit
@no_type_check
def _w(dy, d, start, last, stride, e: tl.constexpr, E: tl.constexpr, T: tl.constexpr, like):
    """All of w but its last entry [T, E], in the type of `like`."""
    at, real = _tile(start, last, stride, e, E, T)
    tokens = start + tl.arange(0, T)
    bottom = tl.load(d + tokens, mask=tokens < last, other=1.0)
    return (tl.load(dy + at, mask=real, other=0.0).to(tl.float32) / bottom[:, None]).to(like.dtype)


@triton.jit
@no_type_check
def _pass(S, z, level, u, fk, a, m, start, last, T: tl.constexpr, LEVELS: tl.constexpr):
    """The sums after the keys of a tile, and their level."""
    faded = fk
    if LEVELS:
        end = _end(m, start, last, T)
        faded = (fk.to(tl.float32) * tl.exp(_levels(a, start, last, T) - end)[:, None]).to(fk.dtype)
        S, z = S * tl.exp(level - end), z * tl.exp(level - end)
        level = end
    return _dot(tl.trans(u), faded, S), z + tl.sum(faded.to(tl.float32), axis=0), level


@triton.jit
@no_type_check
def _fades(a, m, level, start, last, T: tl.constexpr, LEVELS: tl.constexpr):
    """How much of each key of a tile is left for each query [T, T], and of what came before the tile [T]."""
    places = tl.arange(0, T)
    pairs, since = tl.full([T, T], 1.0, tl.float32), tl.full([T], 1.0, tl.float32)
    if LEVELS:
        now = _levels(m, start, last, T)
        pairs, since = tl.exp(_levels(a, start, last, T)[None, :] - now[:, None]), tl.exp(level - now)
    return tl.where(places[:, None] >= places[None, :], pairs, 0.0), since


@triton.jit
@no_type_check
def _levels(x, start, last, T: tl.constexpr):
    """The levels of a tile [T]; beyond the end that of the last token, so that they never fall."""
    return tl.load(x + tl.minimum(start + tl.arange(0, T), last - 1))


@triton.jit
@no_type_check
def _end(m, start, last, T: tl.constexpr):
    return tl.load(m + tl.minimum(start + T, last) - 1)


@triton.jit
@no_type_check
def _level(m, first, n, LEVELS: tl.constexpr):
    """The level before the first token; any will do where nothing was seen yet."""
    level = tl.full((), 0.0, tl.float32)
    if LEVELS:
        level = tl.load(m + tl.minimum(tl.maximum(first - 1, 0), n - 1))
    return level


@triton.jit
@no_type_check
def _load_sums(sums, R: tl.constexpr, E: tl.constexpr, OF_PART: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    if OF_PART:
        place += tl.program_id(1).to(tl.int64) * tl.num_programs(0)
    sums += place * ((E + 1) * R)
    columns = tl.arange(0, R)
    return tl.load(sums + tl.arange(0, E)[:, None] * R + columns[None, :]), tl.load(sums + E * R + columns)


@triton.jit
@no_type_check
def _store_sums(sums, S, z, R: tl.constexpr, E: tl.constexpr):
    sums += (tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * ((E + 1) * R)
    columns = tl.arange(0, R)
    tl.store(sums + tl.arange(0, E)[:, None] * R + columns[None, :], S)
    tl.store(sums + E * R + columns, z)
