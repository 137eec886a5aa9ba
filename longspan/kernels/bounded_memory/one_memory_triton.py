"""Causal running softmax with one memory in Triton: the tiles, parts and passes of `triton.py`, with its functions.

The slots X_t = sum_{s <= t} exp(a_s - l_t) x_s hold values x = v. They are mixed by p = softmax_f(scores), where scores
are given, or are the products of queries with the same slots. In the backward pass such queries read the slots along
with dy, weighted by the gradient u of their scores. Both are sums over the same slots relative to the same l, and share
one N:

    N = sum_t exp(l - l_t) (p_t dy_t + u_t q_t)      below it      sum_t exp(l - l_t) (p_t dy_t . X_t + u_t q_t . X_t)
"""

from typing import Any

import torch
import triton.language as tl
from jaxtyping import Float, UInt8
from torch import Tensor

from longspan.kernels.bounded_memory.one_memory_operator import OneMemoryShape
from longspan.kernels.bounded_memory.triton import (
    LOWEST,
    _backward_tile,
    _backward_within,
    _coefficients,
    _compare,
    _load_moment,
    _load_slots,
    _logits,
    _lse,
    _mix,
    _moment_at,
    _scan_parts,
    _softmax,
    _store_moment,
    _store_slots,
    _write,
    _write_backward,
)
from longspan.kernels.launch import empty_like, strides
from longspan.kernels.operator import like
from longspan.kernels.tiles import dot, halves, jit, load, load_matrix, of, part, store, visible


def forward(
    shape: OneMemoryShape,
    q: Float[Tensor, "b h n _"],
    k: Float[Tensor, "b h n _"],
    v: Float[Tensor, "b h n e"],
    control: Float[Tensor, "h c r"] | None,
    mask: UInt8[Tensor, "b n"] | None,
) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "p_plus_1 pairs 1 e_plus_2 slots"]]:
    """y, and the memory before each part and after the last: S, below it z, below that m."""
    heads, n = v.shape[1:3]
    parts, share, how = shape.parts(n), shape.tokens_per_part(n), _how(shape, control, mask)
    sums = v.new_empty(parts, *shape.states(n)[1:], dtype=torch.float32)
    source = (k, v, k if control is None else control, k if mask is None else mask)
    _pool[(shape.pairs, parts)](sums, heads, n, share, *source, *strides(k, v), **how)
    states, y = _scan_parts(sums, backward=False), empty_like(v, v.shape[3], v.dtype)
    _read[(shape.pairs, parts)](
        q, states, y, heads, n, share, parts, shape.scale, *source, *strides(q, k, v, y), **how, **shape.reading
    )
    return y, states


def backward(
    shape: OneMemoryShape,
    dy: Float[Tensor, "b h n e"],
    states: Float[Tensor, "p_plus_1 pairs 1 e_plus_2 slots"],
    q: Float[Tensor, "b h n _"],
    k: Float[Tensor, "b h n _"],
    v: Float[Tensor, "b h n e"],
    control: Float[Tensor, "h c r"] | None,
    mask: UInt8[Tensor, "b n"] | None,
) -> tuple[Float[Tensor, "b h n _"], Float[Tensor, "b h n _"], Float[Tensor, "b h n e"], Float[Tensor, "h c_ r_"]]:
    """The gradients of q, k, v and of the control, padded to powers of two, or empty if there is none."""
    heads, n = v.shape[1:3]
    parts, share, how = shape.parts(n), shape.tokens_per_part(n), _how(shape, control, mask)
    dq, dk, dv = like(q, k, v)
    moments = states.new_empty(3 if shape.compared else 2, shape.pairs, n, shape.slots)  # l and rho, of dy and of q
    dsums = states.new_empty(parts, *states.shape[1:])
    source = (k, v, k if control is None else control, k if mask is None else mask)
    _backward_queries[(shape.pairs, parts)](
        dy, q, states, dq, moments, dsums, heads, n, share, parts, shape.scale, *source,
        *strides(dy, q, k, v, dq), **how, **shape.reading,
    )  # fmt: skip
    dstates = _scan_parts(dsums, backward=True)  # N after each part
    width = how["C"] if control is not None else 0
    dcontrol = states.new_empty(parts, shape.pairs // heads, heads, width, shape.slots)
    _backward_keys[(shape.pairs, parts)](
        dy, q, moments, dstates, dk, dv, dcontrol, heads, n, share, parts, shape.scale, *source,
        *strides(dy, q, k, v, dk, dv), **how, **shape.reading,
    )  # fmt: skip
    return dq, dk, dv, dcontrol.sum(dim=(0, 1))


def _how(shape: OneMemoryShape, control: Tensor | None, mask: Tensor | None) -> dict[str, Any]:
    return shape.constants | {"CONTROLLED": control is not None, "MASKED": mask is not None}


@jit
def _pool(
    sums, heads, n, share, k, v, A, mask, k_b, k_h, k_t, v_b, v_h, v_t,
    c: tl.constexpr, e: tl.constexpr, r: tl.constexpr, C: tl.constexpr, E: tl.constexpr, R: tl.constexpr,
    T: tl.constexpr, CONTROLLED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    row, head, first, last = part(heads, n, share)
    k, v, mask = of(k, row, head, k_b, k_h), of(v, row, head, v_b, v_h), of(mask, row, head, n, 0)
    A_high, A_low = _control(A, k, head, c, r, C, R, CONTROLLED)
    S, z, m = tl.zeros([E, R], tl.float32), tl.zeros([R], tl.float32), tl.full([R], LOWEST, tl.float32)
    for start in tl.range(first, last, T, disable_licm=True):
        tokens = start + tl.arange(0, T)
        there = visible(mask, tokens, last, MASKED)
        tv = load(v, tokens, v_t, there, e, E)
        a, _ = _logits_and_keys(k, tokens, k_t, there, A_high, A_low, c, r, C, R, CONTROLLED)  # [T, R]
        S, z, m = _write(S, z, m, a, tv)
    _store_slots(sums, 0, S, z, m, E, R, E, 1)


@jit
def _read(
    q, states, y, heads, n, share, parts, scale, k, v, A, mask,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, y_b, y_h, y_t,
    c: tl.constexpr, e: tl.constexpr, r: tl.constexpr, C: tl.constexpr, E: tl.constexpr, R: tl.constexpr,
    w: tl.constexpr, W: tl.constexpr, T: tl.constexpr, COMPARED: tl.constexpr, CONTROLLED: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    row, head, first, last = part(heads, n, share)
    q, y = of(q, row, head, q_b, q_h), of(y, row, head, y_b, y_h)
    k, v, mask = of(k, row, head, k_b, k_h), of(v, row, head, v_b, v_h), of(mask, row, head, n, 0)
    A_high, A_low = _control(A, k, head, c, r, C, R, CONTROLLED)
    S, z, m = _load_slots(states, 0, parts, E, R, E, True, 1)
    for start in tl.range(first, last, T, disable_licm=True):  # pyright: ignore[reportGeneralTypeIssues]
        tokens = start + tl.arange(0, T)
        inside, there = tokens < last, visible(mask, tokens, last, MASKED)
        tq, tv = load(q, tokens, q_t, inside, w, W), load(v, tokens, v_t, there, e, E)
        a, _ = _logits_and_keys(k, tokens, k_t, there, A_high, A_low, c, r, C, R, CONTROLLED)  # [T, R]
        scores = tq.to(tl.float32)
        if COMPARED:
            scores, _, _ = _compare(tq, tv, a, S, z, m, R, T)
        store(y, _mix(_softmax(scores, scale, r, R), tv, a, S, z, m, R, T), tokens, y_t, inside, e, E)
        S, z, m = _write(S, z, m, a, tv)


@jit
def _backward_queries(
    dy, q, states, dq, moments, dsums, heads, n, share, parts, scale, k, v, A, mask,
    g_b, g_h, g_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, dq_b, dq_h, dq_t,
    c: tl.constexpr, e: tl.constexpr, r: tl.constexpr, C: tl.constexpr, E: tl.constexpr, R: tl.constexpr,
    w: tl.constexpr, W: tl.constexpr, T: tl.constexpr, COMPARED: tl.constexpr, CONTROLLED: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    row, head, first, last = part(heads, n, share)
    q, dy, dq = of(q, row, head, q_b, q_h), of(dy, row, head, g_b, g_h), of(dq, row, head, dq_b, dq_h)
    k, v, mask = of(k, row, head, k_b, k_h), of(v, row, head, v_b, v_h), of(mask, row, head, n, 0)
    A_high, A_low = _control(A, k, head, c, r, C, R, CONTROLLED)
    S, z, m = _load_slots(states, 0, parts, E, R, E, True, 1)
    N, below, begin = tl.zeros([E, R], tl.float32), tl.zeros([R], tl.float32), _lse(z, m)
    for start in tl.range(first, last, T, disable_licm=True):
        tokens = start + tl.arange(0, T)
        inside, there = tokens < last, visible(mask, tokens, last, MASKED)
        tq, tg = load(q, tokens, q_t, inside, w, W), load(dy, tokens, g_t, inside, e, E)
        tv = load(v, tokens, v_t, there, e, E)
        a, _ = _logits_and_keys(k, tokens, k_t, there, A_high, A_low, c, r, C, R, CONTROLLED)  # [T, R]
        of_dy, sums, tops = _compare(tg, tv, a, S, z, m, R, T)
        lse = _lse(sums, tops)
        _store_moment(moments, 0, lse, start, n, last, R, T)
        _store_moment(moments, 1, of_dy, start, n, last, R, T)
        scores = tq.to(tl.float32)
        if COMPARED:
            scores, _, _ = _compare(tq, tv, a, S, z, m, R, T)
            _store_moment(moments, 2, scores, start, n, last, R, T)
        p, u = _coefficients(scores, of_dy, scale, r, R)
        if COMPARED:
            N, below = _write_backward(N, below, u, scores, lse, begin, tq)
            u = _mix(u, tv, a, S, z, m, R, T)
        store(dq, u, tokens, dq_t, inside, w, W)
        N, below = _write_backward(N, below, p, of_dy, lse, begin, tg)
        S, z, m = _write(S, z, m, a, tv)
    _store_slots(dsums, 0, N, below, -begin, E, R, E, 1)


@jit
def _backward_keys(
    dy, q, moments, dstates, dk, dv, dcontrol, heads, n, share, parts, scale, k, v, A, mask,
    g_b, g_h, g_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t,
    c: tl.constexpr, e: tl.constexpr, r: tl.constexpr, C: tl.constexpr, E: tl.constexpr, R: tl.constexpr,
    w: tl.constexpr, W: tl.constexpr, T: tl.constexpr, COMPARED: tl.constexpr, CONTROLLED: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    row, head, first, last = part(heads, n, share)
    q, dy = of(q, row, head, q_b, q_h), of(dy, row, head, g_b, g_h)
    k, v, mask = of(k, row, head, k_b, k_h), of(v, row, head, v_b, v_h), of(mask, row, head, n, 0)
    dk, dv = of(dk, row, head, dk_b, dk_h), of(dv, row, head, dv_b, dv_h)
    A_high, A_low = _control(A, k, head, c, r, C, R, CONTROLLED)
    N, below, _ = _load_slots(dstates, 0, parts, E, R, E, True, 1)
    dA = tl.zeros([C, R], tl.float32)
    tiles = tl.cdiv(tl.maximum(last - first, 0), T)
    for turn in tl.range(tiles, disable_licm=True):
        start = first + (tiles - 1 - turn) * T  # from the end, since N accumulates in that direction
        tokens = start + tl.arange(0, T)
        inside, there = tokens < last, visible(mask, tokens, last, MASKED)
        tq, tg = load(q, tokens, q_t, inside, w, W), load(dy, tokens, g_t, inside, e, E)
        tv = load(v, tokens, v_t, there, e, E)
        a, tk = _logits_and_keys(k, tokens, k_t, there, A_high, A_low, c, r, C, R, CONTROLLED)  # [T, R] and [T, C]
        of_dy = _load_moment(moments, 1, start, n, last, 0.0, R, T)
        scores = tq.to(tl.float32)
        if COMPARED:
            scores = _load_moment(moments, 2, start, n, last, 0.0, R, T)
        p, u = _coefficients(scores, of_dy, scale, r, R)
        gv, ga, N, below = _backward_tile(tg, tv, p, of_dy, a, N, below, moments, 0, start, n, last, R, T)
        if COMPARED:
            lse = _load_moment(moments, 0, start, n, last, LOWEST, R, T)
            begin = _moment_at(moments, 0, start - 1, n, R)
            weights, near = _backward_within(tq, tv, u, scores, a, lse, begin, R, T)
            gv, ga = dot(weights, tq, gv), ga + near
            N, below = _write_backward(N, below, u, scores, lse, begin, tq)
        store(dv, gv, tokens, dv_t, inside, e, E)
        if CONTROLLED:
            dA = dot(tl.trans(tk), ga.to(tk.dtype), dA)
            store(dk, dot(ga.to(tk.dtype), tl.trans(A_high), tl.zeros([T, C], tl.float32)), tokens, dk_t, inside, c, C)
        else:
            store(dk, ga, tokens, dk_t, inside, r, R)
    if CONTROLLED:
        place = (tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * (C * R)
        tl.store(dcontrol + place + tl.arange(0, C)[:, None] * R + tl.arange(0, R)[None, :], dA)


@jit
def _control(
    A, k, head, c: tl.constexpr, r: tl.constexpr, C: tl.constexpr, R: tl.constexpr, CONTROLLED: tl.constexpr
):  # fmt: skip
    """A [C, R] of this head rounded to the type of k, and the remainder; without a control, placeholders."""
    high, low = 0.0, 0.0
    if CONTROLLED:
        high, low = halves(load_matrix(A, head, c, r, C, R).to(tl.float32), k)
    return high, low


@jit
def _logits_and_keys(
    k, tokens, stride, there, A_high, A_low, c: tl.constexpr, r: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
    CONTROLLED: tl.constexpr,
):  # fmt: skip
    """Logits [T, R], LOWEST for hidden tokens, and the keys [T, C] they are computed from, or are."""
    if CONTROLLED:
        tk = load(k, tokens, stride, there, c, C)
        a = _logits(tk, A_high, A_low, there)
    else:
        tk = load(k, tokens, stride, there, r, R)
        a = tl.where(there[:, None], tk.to(tl.float32), LOWEST)
    return a, tk
