"""Linear attention in Triton: features, sums and quotient without a tensor in between, causal or not, padded or ragged.

With u_s = (v_s, 1), the sums of a row and head are one matrix M [e+1, r], S above z, and d_t the denominator of y_t.

    forward    M_t = sum_s u_s phi(k_s)^T      (y_t d_t, d_t) = M_t phi(q_t)
    backward   w_t = (dy_t, -dy_t . y_t) / d_t      N_s = sum_t w_t phi(q_t)^T
               dphi(q_t) = M_t^T w_t      dphi(k_s) = N_s^T u_s      du_s = N_s phi(k_s)

where t sees all s of its row, or in the causal form s <= t. Rows are cut into parts of several tiles, and a program
owns one part of one head. First every part is summed by itself; a causal part starts from the sums of the parts before
it (in the backward pass, after it). Then it goes through its tiles with M in registers: pairs within a tile by a masked
product, all others through M. So a causal pass reads keys and values twice and writes little else.

Features wider than a program can hold come in slices, each of which adds its numerators and denominators to those of
the one before it; the last one divides.

Ragged rows are stored one after another as a single batch row; `cu_seqlens` says where each begins.

Products of bfloat16 tiles use tensor cores. A matrix of sums enters them as two bfloat16 matrices, its rounded value
and the remainder, and so keeps its precision. Products of float32 are not rounded. Deterministic.
"""

import math
from typing import NamedTuple

import torch
import triton.language as tl
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from longspan.kernels.launch import empty_like, strides
from longspan.kernels.linear_attention.shape import Shape
from longspan.kernels.operator import like
from longspan.kernels.tiles import dot, dot_sums, jit, load, load_visible, of, store, visible

STEP = tl.constexpr(Shape.STEP)


class Side(NamedTuple):
    """What belongs to the queries or to the keys: [b h n c] for ragged rows too, which are one batch row."""

    max_seqlen: int
    angles: Float[Tensor, "b n"] | None
    mask: UInt8[Tensor, "b n"] | None
    cu_seqlens: Int[Tensor, " rows_plus_1"] | None


class Inputs(NamedTuple):
    q: Float[Tensor, "b h n c"]
    k: Float[Tensor, "b h m c"]
    v: Float[Tensor, "b h m e"]
    queries: Side
    keys: Side

    @property
    def flags(self) -> dict[str, bool]:
        return {"MASKED": self.keys.mask is not None}


def forward(
    shapes: list[Shape], inputs: Inputs
) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h n"], Float[Tensor, " saved"]]:
    """y, its denominators, and M of all slices: what each causal part starts from, or that of whole rows."""
    (q, _, v, queries, keys), saved = inputs, []
    y, d = empty_like(q, v.shape[3], v.dtype), q.new_empty(q.shape[:3], dtype=torch.float32)
    partial = empty_like(q, v.shape[3], torch.float32) if len(shapes) > 1 else y  # numerators of the slices so far
    for shape in shapes:
        q, k, parts = shape.cut(inputs.q), shape.cut(inputs.k), shape.parts(keys.max_seqlen)
        sums = k.new_empty(shape.sums(parts), dtype=torch.float32)
        _sum_keys[(shape.pairs, parts)](
            k, v, sums, keys.cu_seqlens, keys.angles, keys.mask, *_sizes(shape, k, keys), *strides(k, v),
            **inputs.flags, **shape.constants(),
        )  # fmt: skip
        sums = _before(sums) if shape.causal else sums.sum(dim=0, keepdim=True)
        _read[(shape.pairs, shape.reading_parts(queries.max_seqlen))](
            q, k, v, sums, y, d, partial, queries.cu_seqlens, queries.angles, keys.angles, keys.mask,
            *_sizes(shape, q, queries), shape.eps, shape.floor, *strides(q, k, v, y, partial),
            SIGNED=shape.signed, **inputs.flags, **shape.flags, **shape.constants(),
        )  # fmt: skip
        saved.append(sums.flatten())
    return y, d, saved[0] if len(saved) == 1 else torch.cat(saved)


def backward(
    shapes: list[Shape],
    dy: Float[Tensor, "b h n e"],
    y: Float[Tensor, "b h n e"] | None,
    d: Float[Tensor, "b h n"],
    sums: Float[Tensor, " saved"],
    inputs: Inputs,
) -> tuple[Float[Tensor, "b h n c"], Float[Tensor, "b h m c"], Float[Tensor, "b h m e"]]:
    """The gradients of q, k and v; several slices need y, since each computes only a part of it."""
    _, _, v, queries, keys = inputs
    dq, dk, dv = like(*inputs[:3])
    dd, partial = torch.empty_like(d), dv  # the last entry of every w; dv of the slices so far
    if y is not None:
        delta = (dy.float() * y.float()).sum(dim=-1)
        dd = torch.where((d.abs() if shapes[0].signed else d) > shapes[0].floor, -delta / d, 0)
        partial = empty_like(v, v.shape[3], torch.float32)
    sizes = [math.prod(shape.saved(keys.max_seqlen)) for shape in shapes]
    for shape, saved in zip(shapes, sums.split(sizes), strict=True):
        q, k, own_dq, own_dk = (shape.cut(x) for x in (*inputs[:2], dq, dk))
        parts, constants = shape.parts(queries.max_seqlen), shape.constants(backward=True)
        dsums = saved.new_empty(shape.sums(parts))
        _backward_queries[(shape.pairs, parts)](
            dy, q, k, v, saved, d, own_dq, dd, dsums, queries.cu_seqlens, queries.angles, keys.angles, keys.mask,
            *_sizes(shape, q, queries), shape.floor, *strides(dy, q, k, v, own_dq),
            CAUSAL=shape.causal, SIGNED=shape.signed, GIVEN=y is not None, **inputs.flags, **constants,
        )  # fmt: skip
        dsums = _before(dsums.flip(0)).flip(0) if shape.causal else dsums.sum(dim=0, keepdim=True)
        _backward_keys[(shape.pairs, shape.reading_parts(keys.max_seqlen))](
            dy, q, k, v, dsums, d, dd, own_dk, dv, partial, keys.cu_seqlens, queries.angles, keys.angles, keys.mask,
            *_sizes(shape, k, keys), *strides(dy, q, k, v, own_dk, dv, partial),
            **inputs.flags, **shape.flags, **constants,
        )  # fmt: skip
    return dq, dk, dv


def _sizes(shape: Shape, x: Float[Tensor, "b h n c"], side: Side) -> tuple[int, int, int]:
    """Heads, tokens of a batch row, and tokens of a part, which ragged rows compute for themselves."""
    return shape.heads, x.shape[2], 0 if shape.ragged else shape.tokens_per_part(side.max_seqlen)


def _before(sums: Float[Tensor, "p pairs e1 r"]) -> Float[Tensor, "p pairs e1 r"]:
    """The sums of all earlier parts."""
    return torch.cat([torch.zeros_like(sums[:1]), sums[:-1].cumsum(dim=0)])


@jit
def _sum_keys(
    k, v, sums, cu_seqlens, k_angles, mask, heads, n, share, k_b, k_h, k_t, v_b, v_h, v_t,
    c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, R: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
    FEATURE: tl.constexpr, MASKED: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    row, head, begin, first, last = _part(cu_seqlens, heads, n, share, RAGGED)
    k, v = _row(k, row, head, begin, k_b, k_h, k_t), _row(v, row, head, begin, v_b, v_h, v_t)
    if MASKED:
        mask += row * n + begin
    if FEATURE == "cosine":
        k_angles += row * n + begin
    S, z = tl.zeros([E, R], tl.float32), tl.zeros([R], tl.float32)
    for start in range(first, last, T):
        tokens = start + tl.arange(0, T)
        fk = _features(k, k_angles, mask, start, last, k_t, c, C, R, T, FEATURE, MASKED)  # [T, R]
        u = load_visible(v, mask, tokens, last, v_t, e, E, MASKED)  # [T, E]
        S, z = dot(tl.trans(u), fk, S), z + tl.sum(fk.to(tl.float32), axis=0)
    _store_sums(sums, S, z, R, E)


@jit
def _read(
    q, k, v, sums, y, d, partial, cu_seqlens, q_angles, k_angles, mask, heads, n, share, eps, floor,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, y_b, y_h, y_t, p_b, p_h, p_t,
    c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, R: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
    FEATURE: tl.constexpr, MASKED: tl.constexpr, RAGGED: tl.constexpr, CAUSAL: tl.constexpr, FIRST: tl.constexpr,
    LAST: tl.constexpr, SIGNED: tl.constexpr,
):  # fmt: skip
    row, head, begin, first, last = _part(cu_seqlens, heads, n, share, RAGGED)
    q, y = _row(q, row, head, begin, q_b, q_h, q_t), _row(y, row, head, begin, y_b, y_h, y_t)
    d, partial = d + (row * heads + head) * n + begin, _row(partial, row, head, begin, p_b, p_h, p_t)
    if FEATURE == "cosine":
        q_angles += row * n + begin
    if CAUSAL:
        k, v = _row(k, row, head, begin, k_b, k_h, k_t), _row(v, row, head, begin, v_b, v_h, v_t)
        if MASKED:
            mask += row * n + begin
        if FEATURE == "cosine":
            k_angles += row * n + begin
    S, z = _load_sums(sums, R, E, CAUSAL)
    for start in range(first, last, T):
        tokens = start + tl.arange(0, T)
        fq = _features(q, q_angles, None, start, last, q_t, c, C, R, T, FEATURE, False)  # [T, R]
        top = dot_sums(fq, tl.trans(S))  # [T, E]
        bottom = tl.sum(fq.to(tl.float32) * z[None, :], axis=1)  # [T]
        if CAUSAL:
            fk = _features(k, k_angles, mask, start, last, k_t, c, C, R, T, FEATURE, MASKED)
            u = load_visible(v, mask, tokens, last, v_t, e, E, MASKED)
            weights = tl.where(_causal_mask(T), dot(fq, tl.trans(fk), tl.zeros([T, T], tl.float32)), 0.0).to(fq.dtype)
            top = dot(weights, u, top)
            bottom += tl.sum(weights.to(tl.float32), axis=1)
            S, z = dot(tl.trans(u), fk, S), z + tl.sum(fk.to(tl.float32), axis=0)
        if not FIRST:
            top += load(partial, tokens, p_t, tokens < last, e, E)
            bottom += tl.load(d + tokens, mask=tokens < last, other=0.0)
        if LAST:
            bottom += eps
            size = tl.maximum(tl.abs(bottom) if SIGNED else bottom, floor)
            bottom = tl.where(bottom < 0, -size, size) if SIGNED else size
            store(y, top / bottom[:, None], tokens, y_t, tokens < last, e, E)
        else:
            store(partial, top, tokens, p_t, tokens < last, e, E)
        tl.store(d + tokens, bottom, mask=tokens < last)


@jit
def _backward_queries(
    dy, q, k, v, sums, d, dq, dd, dsums, cu_seqlens, q_angles, k_angles, mask, heads, n, share, floor,
    g_b, g_h, g_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, dq_b, dq_h, dq_t,
    c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, R: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
    FEATURE: tl.constexpr, MASKED: tl.constexpr, RAGGED: tl.constexpr, CAUSAL: tl.constexpr, GIVEN: tl.constexpr,
    SIGNED: tl.constexpr,
):  # fmt: skip
    row, head, begin, first, last = _part(cu_seqlens, heads, n, share, RAGGED)
    dy, q = _row(dy, row, head, begin, g_b, g_h, g_t), _row(q, row, head, begin, q_b, q_h, q_t)
    dq, of_head = _row(dq, row, head, begin, dq_b, dq_h, dq_t), (row * heads + head) * n + begin
    d, dd = d + of_head, dd + of_head
    if FEATURE == "cosine":
        q_angles += row * n + begin
    if CAUSAL:
        k, v = _row(k, row, head, begin, k_b, k_h, k_t), _row(v, row, head, begin, v_b, v_h, v_t)
        if MASKED:
            mask += row * n + begin
        if FEATURE == "cosine":
            k_angles += row * n + begin
    S, z = _load_sums(sums, R, E, CAUSAL)
    dS, dz = tl.zeros([E, R], tl.float32), tl.zeros([R], tl.float32)
    for start in range(first, last, T):
        tokens = start + tl.arange(0, T)
        fq = _features(q, q_angles, None, start, last, q_t, c, C, R, T, FEATURE, False)  # [T, R]
        w = _w(dy, d, start, last, g_t, e, E, T, fq)  # [T, E]
        g = dot_sums(w, S)  # [T, R], all of dphi(q) that does not come through the denominator
        if CAUSAL:
            fk = _features(k, k_angles, mask, start, last, k_t, c, C, R, T, FEATURE, MASKED)
            u = load_visible(v, mask, tokens, last, v_t, e, E, MASKED)
            weights = tl.where(_causal_mask(T), dot(w, tl.trans(u), tl.zeros([T, T], tl.float32)), 0.0).to(fq.dtype)
            g = dot(weights, fk, g)
        if GIVEN:
            w_last = tl.load(dd + tokens, mask=tokens < last, other=0.0)
        else:
            bottom = tl.load(d + tokens, mask=tokens < last, other=1.0)
            # At the floor the denominator is a constant; there its size and the floor are the same number.
            varies = (tl.abs(bottom) if SIGNED else bottom) > floor
            w_last = tl.where(varies, -tl.sum(fq.to(tl.float32) * g, axis=1) / bottom, 0.0)
            if CAUSAL:
                tl.store(dd + tokens, w_last, mask=tokens < last)
        g += w_last[:, None] * z[None, :]
        if CAUSAL:
            g = dot(tl.where(_causal_mask(T), w_last[:, None], 0.0).to(fq.dtype), fk, g)
            S, z = dot(tl.trans(u), fk, S), z + tl.sum(fk.to(tl.float32), axis=0)
        _store_gradient(dq, g, fq, q_angles, mask, start, last, dq_t, c, C, R, T, FEATURE, False)
        dS = dot(tl.trans(w), fq, dS)
        dz += tl.sum(fq.to(tl.float32) * w_last[:, None], axis=0)
    _store_sums(dsums, dS, dz, R, E)


@jit
def _backward_keys(
    dy, q, k, v, dsums, d, dd, dk, dv, partial, cu_seqlens, q_angles, k_angles, mask, heads, n, share,
    g_b, g_h, g_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t,
    p_b, p_h, p_t,
    c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, R: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
    FEATURE: tl.constexpr, MASKED: tl.constexpr, RAGGED: tl.constexpr, CAUSAL: tl.constexpr, FIRST: tl.constexpr,
    LAST: tl.constexpr,
):  # fmt: skip
    row, head, begin, first, last = _part(cu_seqlens, heads, n, share, RAGGED)
    k, v = _row(k, row, head, begin, k_b, k_h, k_t), _row(v, row, head, begin, v_b, v_h, v_t)
    dk, dv = _row(dk, row, head, begin, dk_b, dk_h, dk_t), _row(dv, row, head, begin, dv_b, dv_h, dv_t)
    partial = _row(partial, row, head, begin, p_b, p_h, p_t)
    if MASKED:
        mask += row * n + begin
    if FEATURE == "cosine":
        k_angles += row * n + begin
    if CAUSAL:
        dy, q = _row(dy, row, head, begin, g_b, g_h, g_t), _row(q, row, head, begin, q_b, q_h, q_t)
        d, dd = d + (row * heads + head) * n + begin, dd + (row * heads + head) * n + begin
        if FEATURE == "cosine":
            q_angles += row * n + begin
    N, N_last = _load_sums(dsums, R, E, CAUSAL)
    tiles = tl.cdiv(tl.maximum(last - first, 0), T)
    for tile in range(tiles):
        start = first + (tiles - 1 - tile) * T  # from the end, since N accumulates in that direction
        tokens = start + tl.arange(0, T)
        fk = _features(k, k_angles, mask, start, last, k_t, c, C, R, T, FEATURE, MASKED)  # [T, R]
        u = load_visible(v, mask, tokens, last, v_t, e, E, MASKED)  # [T, E]
        g = dot_sums(u, N) + N_last[None, :]  # [T, R]
        gv = dot_sums(fk, tl.trans(N))  # [T, E]
        if CAUSAL:
            fq = _features(q, q_angles, None, start, last, q_t, c, C, R, T, FEATURE, False)
            w = _w(dy, d, start, last, g_t, e, E, T, fk)
            w_last = tl.load(dd + tokens, mask=tokens < last, other=0.0)
            zeros = tl.zeros([T, T], tl.float32)
            of_values = tl.where(_causal_mask(T), dot(w, tl.trans(u), zeros) + w_last[:, None], 0.0).to(fk.dtype)
            of_features = tl.where(_causal_mask(T), dot(fq, tl.trans(fk), zeros), 0.0).to(fk.dtype)
            g, gv = dot(tl.trans(of_values), fq, g), dot(tl.trans(of_features), w, gv)
            N = dot(tl.trans(w), fq, N)
            N_last += tl.sum(fq.to(tl.float32) * w_last[:, None], axis=0)
        _store_gradient(dk, g, fk, k_angles, mask, start, last, dk_t, c, C, R, T, FEATURE, MASKED)
        if not FIRST:
            gv += load(partial, tokens, p_t, tokens < last, e, E)
        if LAST:
            store(dv, gv, tokens, dv_t, tokens < last, e, E)
        else:
            store(partial, gv, tokens, p_t, tokens < last, e, E)


@jit
def _part(cu_seqlens, heads, n, share, RAGGED: tl.constexpr):
    """Batch row and head of this program, where its row begins in it, and its tokens, counted from there."""
    row, head = (tl.program_id(0) // heads).to(tl.int64), (tl.program_id(0) % heads).to(tl.int64)
    begin = row * 0
    if RAGGED:
        begin = tl.load(cu_seqlens + row).to(tl.int64)
        n = (tl.load(cu_seqlens + row + 1) - begin).to(tl.int32)
        share = tl.cdiv(tl.cdiv(n, STEP), tl.num_programs(1)) * STEP
        row = row * 0
    first = tl.program_id(1) * share
    return row, head, begin, first, tl.minimum(first + share, n)


@jit
def _row(x, row, head, begin, row_stride, head_stride, token_stride):
    """Where the tokens of a row and head begin."""
    return of(x, row, head, row_stride, head_stride) + begin * token_stride


@jit
def _features(
    x, angles, mask, start, last, stride, c: tl.constexpr, C: tl.constexpr, R: tl.constexpr, T: tl.constexpr,
    FEATURE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """phi [T, R], rounded to the type of x; 0 where there is no token, unlike elu(0) + 1 or a sigmoid."""
    tokens, columns = start + tl.arange(0, T), tl.arange(0, R)
    there = visible(mask, tokens, last, MASKED)
    channels = columns % C  # of [relu(x) cos, relu(x) sin] both halves come from the same channels
    real = there[:, None] & (channels < c)[None, :]
    at = (tokens.to(tl.int64) * stride)[:, None] + channels[None, :]
    loaded = tl.load(x + at, mask=real, other=0.0)
    single = loaded.to(tl.float32)
    if FEATURE == "elu":
        single = tl.where(single > 0, single + 1, tl.exp(tl.minimum(single, 0.0)))
    if FEATURE == "sigmoid":
        single = tl.sigmoid(single)
    if FEATURE == "cosine":
        single = tl.maximum(single, 0.0) * _turns(angles, start, last, C, R, T)
    return tl.where(real, single, 0.0).to(loaded.dtype)


@jit
def _turns(angles, start, last, C: tl.constexpr, R: tl.constexpr, T: tl.constexpr):
    """cos in the first half of the columns, sin in the second [T, R]."""
    tokens = start + tl.arange(0, T)
    angle = tl.load(angles + tokens, mask=tokens < last, other=0.0)
    return tl.where((tl.arange(0, R) < C)[None, :], tl.cos(angle)[:, None], tl.sin(angle)[:, None])


@jit
def _store_gradient(
    x, g, phi, angles, mask, start, last, stride, c: tl.constexpr, C: tl.constexpr, R: tl.constexpr, T: tl.constexpr,
    FEATURE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The gradient g of phi [T, R] as that of x; the slope is computed from phi and is 0 where phi is."""
    if FEATURE == "elu":
        g = g * tl.minimum(phi.to(tl.float32), 1.0)
    if FEATURE == "sigmoid":
        g = g * phi.to(tl.float32) * (1.0 - phi.to(tl.float32))
    if FEATURE == "cosine":  # both halves go back to the same channels
        g = tl.where(phi != 0, g * _turns(angles, start, last, C, R, T), 0.0)
        g = tl.sum(tl.reshape(g, [T, 2, C]), axis=1)
    tokens = start + tl.arange(0, T)
    if MASKED and FEATURE == "none":
        g = tl.where(visible(mask, tokens, last, MASKED)[:, None], g, 0.0)
    store(x, g, tokens, stride, tokens < last, c, C)


@jit
def _w(dy, d, start, last, stride, e: tl.constexpr, E: tl.constexpr, T: tl.constexpr, like):
    """All of w but its last entry [T, E], in the type of `like`."""
    tokens = start + tl.arange(0, T)
    bottom = tl.load(d + tokens, mask=tokens < last, other=1.0)
    return (load(dy, tokens, stride, tokens < last, e, E).to(tl.float32) / bottom[:, None]).to(like.dtype)


@jit
def _causal_mask(T: tl.constexpr):
    """Which keys of a tile each of its queries sees [T of t, T of s]."""
    return tl.arange(0, T)[:, None] >= tl.arange(0, T)[None, :]


@jit
def _load_sums(sums, R: tl.constexpr, E: tl.constexpr, OF_PART: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    if OF_PART:
        place += tl.program_id(1).to(tl.int64) * tl.num_programs(0)
    sums += place * ((E + 1) * R)
    columns = tl.arange(0, R)
    return tl.load(sums + tl.arange(0, E)[:, None] * R + columns[None, :]), tl.load(sums + E * R + columns)


@jit
def _store_sums(sums, S, z, R: tl.constexpr, E: tl.constexpr):
    sums += (tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * ((E + 1) * R)
    columns = tl.arange(0, R)
    tl.store(sums + tl.arange(0, E)[:, None] * R + columns[None, :], S)
    tl.store(sums + E * R + columns, z)
