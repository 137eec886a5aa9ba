"""Running softmax in Triton: logits, slots, softmax and reading without intermediate tensors, causal or not.

Both memories are handled alike: keys x = k are read by g = q, and values x = v, in the backward pass, by g = dy. With
l_t = log sum_{s <= t} exp(a_s) for each slot f, the slots are X_t = sum_{s <= t} exp(a_s - l_t) x_s, and

    compare   rho_tf = g_t . X_tf                  scores of q, and the gradient of p from dy
    mix       sum_f p_tf X_tf                      y from p, and dq from the gradient u of scores
    backward  dx_s = sum_{t >= s} sum_f p_tf exp(a_sf - l_tf) g_t
              da_sf = sum_{t >= s} p_tf exp(a_sf - l_tf) (g_t . x_s - rho_tf)

Rows are cut into parts, each of several tiles, and a program owns one part of one head. First every part is summed by
itself, S = sum_s exp(a_s - m) x_s and z = sum_s exp(a_s - m) with m the largest logit; one kernel then scans the parts
and gives each the sums before it. Then a part goes through its tiles with the slots in registers. The backward pass is
the same from the end, with N = sum_t p_t exp(l - l_t) g_t and a separate column, sum_t p_t exp(l - l_t) rho_t, relative
to the lse l before the tokens they include. So no exponent between tiles is ever positive.

Within a tile the weight of a pair is split in two at a logit `top`, so that all pairs of all slots are matrix products:

    exp(a_s - l_t) = exp(a_s - top) exp(top - l_t)

Where l_t lies less than REACH below top, both factors are well within the range of float32, and what underflows is
negligible beside the weights that remain. Top is the largest logit of the tile and its past. Earlier tokens of a tile
whose l_t is out of reach, because logits grew that much in between, get a pass of their own, with the largest logit up
to them as top. One pass is nearly always enough, and there are never more passes than tokens.

Products of bfloat16 tiles use tensor cores. A matrix of sums, of products q . k or of controls enters them as two, its
rounded value and the remainder. Weights are rounded once, before they are summed, so that slots remain weighted means.
Products of float32 are not rounded at all. The kernels are deterministic.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, UInt8
from torch import Tensor

from longspan.kernels.bounded_memory.operator import MemoryShape
from longspan.kernels.launch import as_bytes, empty_like, readable, strides
from longspan.kernels.operator import like
from longspan.kernels.tiles import (
    dot,
    dot_halves,
    dot_single,
    dot_sums,
    halves,
    jit,
    load,
    load_matrix,
    of,
    part,
    store,
    tile,
    visible,
)

LOWEST = tl.constexpr(-1e37)  # the logit of a hidden token, and the lse of a slot that has seen nothing
REACH = tl.constexpr(60.0)  # far from 88, where exp overflows; exp(60 - 88) is negligible beside 1
NEAREST = tl.constexpr(math.exp(-60.0))
BOTH = tl.constexpr(2)  # memories, of keys and of values
SCANNED = 1024  # elements of the slots that one program scans


class Source(NamedTuple):
    """Inputs of both passes: keys, values, how they are written, and which of them are real."""

    k: Float[Tensor, "b h m c"]
    v: Float[Tensor, "b h m e"]
    control_key: Float[Tensor, "c r"]
    control_value: Float[Tensor, "e r"] | None
    mask: UInt8[Tensor, "b m"] | None

    @classmethod
    def of(
        cls, k: Tensor, v: Tensor, control_key: Tensor, control_value: Tensor | None, mask: Tensor | None
    ) -> "Source":
        control_value = None if control_value is None else control_value.contiguous()
        return cls(readable(k), readable(v), control_key.contiguous(), control_value, as_bytes(mask))

    @property
    def pointers(self) -> list[Tensor]:
        """Absent inputs become a tensor that is never read."""
        k, v, a, b, mask = self
        return [k, v, a, a if b is None else b, k if mask is None else mask]

    @property
    def flags(self) -> dict[str, bool]:
        return {"SHARED": self.control_value is None, "MASKED": self.mask is not None}


def forward(
    shape: MemoryShape, q: Float[Tensor, "b h n c"], source: Source
) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "p_plus_1 pairs 2 d_plus_2 r"]]:
    """y, and both memories before each part and after the last: S, below it z, below that m."""
    k, v, (heads, n), m = source.k, source.v, q.shape[1:3], source.k.shape[2]
    sums = k.new_empty(shape.parts(m), *shape.states(m)[1:], dtype=torch.float32)
    _pool[(shape.pairs, len(sums))](
        sums, heads, m, shape.tokens_per_part(m), *source.pointers, *strides(k, v), **source.flags, **shape.constants
    )
    states, y = _scan_parts(sums, backward=False), empty_like(q, v.shape[3], v.dtype)
    _attend[(shape.pairs, shape.parts(n))](
        q, states, y, heads, n, shape.tokens_per_part(n), len(states) - 1, shape.c**-0.5, *source.pointers,
        *strides(q, k, v, y), **source.flags, **shape.constants,
    )  # fmt: skip
    return y, states


def backward(
    shape: MemoryShape,
    dy: Float[Tensor, "b h n e"],
    q: Float[Tensor, "b h n c"],
    source: Source,
    states: Float[Tensor, "p_plus_1 pairs 2 d_plus_2 r"],
) -> tuple[Float[Tensor, "b h n c"], Float[Tensor, "b h m c"], Float[Tensor, "b h m e"], Float[Tensor, "2 d r"]]:
    """The gradients of q, k, v and of both controls."""
    k, v, (heads, n), m = source.k, source.v, q.shape[1:3], source.k.shape[2]
    dq, dk, dv = like(q, k, v)
    moments = states.new_empty(4, shape.pairs, n if shape.causal else 0, shape.slots)  # l and rho of both memories
    dsums = states.new_empty(shape.parts(n), *states.shape[1:])
    _backward_queries[(shape.pairs, len(dsums))](
        dy, q, states, dq, moments, dsums, heads, n, shape.tokens_per_part(n), len(states) - 1, shape.c**-0.5,
        *source.pointers, *strides(dy, q, k, v, dq), **source.flags, **shape.constants,
    )  # fmt: skip
    dstates = _scan_parts(dsums, backward=True)  # N after each part
    dcontrols = states.new_empty(shape.parts(m) * shape.pairs, 2, shape.width, shape.slots)
    _backward_keys[(shape.pairs, shape.parts(m))](
        dy, q, states, moments, dstates, dk, dv, dcontrols, heads, m, shape.tokens_per_part(m), len(states) - 1,
        len(dstates) - 1, shape.c**-0.5, *source.pointers, *strides(dy, q, k, v, dk, dv), **source.flags,
        **shape.constants,
    )  # fmt: skip
    return dq, dk, dv, dcontrols.sum(dim=0)


def _scan_parts(
    sums: Float[Tensor, "p pairs memories d_plus_2 r"], *, backward: bool
) -> Float[Tensor, "p_plus_1 pairs memories d_plus_2 r"]:
    """For each part the sums of all parts before it, or if `backward` after it; and last the sums of all parts."""
    parts, pairs, memories, rows, r = sums.shape
    states = sums.new_empty(parts + 1, *sums.shape[1:])
    grid = (pairs * memories, triton.cdiv((rows - 1) * r, SCANNED))
    _scan[grid](sums, states, parts, D=rows - 2, R=r, BLOCK=SCANNED, BACKWARD=backward)
    return states


@jit
def _pool(
    sums, heads, n, share, k, v, A, B, mask, k_b, k_h, k_t, v_b, v_h, v_t,
    c: tl.constexpr, e: tl.constexpr, r: tl.constexpr, C: tl.constexpr, E: tl.constexpr, R: tl.constexpr,
    D: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr, SHARED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    row, head, first, last = part(heads, n, share)
    k, v, mask = of(k, row, head, k_b, k_h), of(v, row, head, v_b, v_h), of(mask, row, head, n, 0)
    A_high, A_low, B_high, B_low = _controls(A, B, k, v, c, e, r, C, E, R, SHARED)
    Sk, zk, mk = tl.zeros([C, R], tl.float32), tl.zeros([R], tl.float32), tl.full([R], LOWEST, tl.float32)
    Sv, zv, mv = tl.zeros([E, R], tl.float32), tl.zeros([R], tl.float32), tl.full([R], LOWEST, tl.float32)
    for start in tl.range(first, last, T, disable_licm=True):
        tokens = start + tl.arange(0, T)
        there = visible(mask, tokens, last, MASKED)
        tk, tv = load(k, tokens, k_t, there, c, C), load(v, tokens, v_t, there, e, E)
        a, b = _both_logits(tk, tv, A_high, A_low, B_high, B_low, there, SHARED)  # [T, R] each
        Sk, zk, mk = _write(Sk, zk, mk, a, tk)
        Sv, zv, mv = _write(Sv, zv, mv, b, tv)
    _store_slots(sums, 0, Sk, zk, mk, C, R, D)
    _store_slots(sums, 1, Sv, zv, mv, E, R, D)


@jit
def _scan(sums, states, parts, D: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr, BACKWARD: tl.constexpr):
    """Sums relative to maxima that never decrease; backward these are negative lse, nondecreasing from the end."""
    memory, memories = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real, slot = at < (D + 1) * R, at % R
    total, top = tl.zeros([BLOCK], tl.float32), tl.full([BLOCK], LOWEST, tl.float32)
    for step in range(parts + 1):
        part = step
        if BACKWARD:
            part = tl.where(step < parts, parts - 1 - step, parts)
        place = (part * memories + memory) * ((D + 2) * R)
        tl.store(states + place + at, total, mask=real)
        tl.store(states + place + (D + 1) * R + at, top, mask=at < R)
        here = real & (step < parts)
        largest = tl.load(sums + place + (D + 1) * R + slot, mask=here, other=LOWEST)
        higher = tl.maximum(top, largest)
        own = tl.load(sums + place + at, mask=here, other=0.0)
        total = total * tl.exp(top - higher) + own * tl.exp(largest - higher)
        top = higher


@jit
def _attend(
    q, states, y, heads, n, share, parts, scale, k, v, A, B, mask,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, y_b, y_h, y_t,
    c: tl.constexpr, e: tl.constexpr, r: tl.constexpr, C: tl.constexpr, E: tl.constexpr, R: tl.constexpr,
    D: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr, SHARED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    row, head, first, last = part(heads, n, share)
    q, y = of(q, row, head, q_b, q_h), of(y, row, head, y_b, y_h)
    k, v, mask = of(k, row, head, k_b, k_h), of(v, row, head, v_b, v_h), of(mask, row, head, n, 0)
    Sk, zk, mk = _load_slots(states, 0, parts, C, R, D, CAUSAL)
    Sv, zv, mv = _load_slots(states, 1, parts, E, R, D, CAUSAL)
    if CAUSAL:
        A_high, A_low, B_high, B_low = _controls(A, B, k, v, c, e, r, C, E, R, SHARED)
    else:
        Sk, Sv = _mean(Sk, zk), _mean(Sv, zv)
    for start in tl.range(first, last, T, disable_licm=True):  # pyright: ignore[reportGeneralTypeIssues]
        tokens = start + tl.arange(0, T)
        inside = tokens < last
        tq = load(q, tokens, q_t, inside, c, C)
        if CAUSAL:
            there = visible(mask, tokens, last, MASKED)
            tk, tv = load(k, tokens, k_t, there, c, C), load(v, tokens, v_t, there, e, E)
            a, b = _both_logits(tk, tv, A_high, A_low, B_high, B_low, there, SHARED)
            rho, _, _ = _compare(tq, tk, a, Sk, zk, mk, R, T)  # [T, R]
            out = _mix(_softmax(rho, scale, r, R), tv, b, Sv, zv, mv, R, T)
            Sk, zk, mk = _write(Sk, zk, mk, a, tk)
            Sv, zv, mv = _write(Sv, zv, mv, b, tv)
        else:
            p = _softmax(dot_sums(tq, Sk), scale, r, R)
            out = dot_sums(p.to(tq.dtype), tl.trans(Sv))
        store(y, out, tokens, y_t, inside, e, E)


@jit
def _backward_queries(
    dy, q, states, dq, moments, dsums, heads, n, share, parts, scale, k, v, A, B, mask,
    g_b, g_h, g_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, dq_b, dq_h, dq_t,
    c: tl.constexpr, e: tl.constexpr, r: tl.constexpr, C: tl.constexpr, E: tl.constexpr, R: tl.constexpr,
    D: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr, SHARED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    row, head, first, last = part(heads, n, share)
    q, dy, dq = of(q, row, head, q_b, q_h), of(dy, row, head, g_b, g_h), of(dq, row, head, dq_b, dq_h)
    k, v, mask = of(k, row, head, k_b, k_h), of(v, row, head, v_b, v_h), of(mask, row, head, n, 0)
    Sk, zk, mk = _load_slots(states, 0, parts, C, R, D, CAUSAL)
    Sv, zv, mv = _load_slots(states, 1, parts, E, R, D, CAUSAL)
    Nk, nk = tl.zeros([C, R], tl.float32), tl.zeros([R], tl.float32)
    Nv, nv = tl.zeros([E, R], tl.float32), tl.zeros([R], tl.float32)
    begin_k, begin_v = tl.zeros([R], tl.float32), tl.zeros([R], tl.float32)  # if not causal, l is the same for all
    if CAUSAL:
        A_high, A_low, B_high, B_low = _controls(A, B, k, v, c, e, r, C, E, R, SHARED)
        begin_k, begin_v = _lse(zk, mk), _lse(zv, mv)
    else:
        Sk, Sv = _mean(Sk, zk), _mean(Sv, zv)
    for start in tl.range(first, last, T, disable_licm=True):
        tokens = start + tl.arange(0, T)
        inside = tokens < last
        tq, tg = load(q, tokens, q_t, inside, c, C), load(dy, tokens, g_t, inside, e, E)
        if CAUSAL:
            there = visible(mask, tokens, last, MASKED)
            tk, tv = load(k, tokens, k_t, there, c, C), load(v, tokens, v_t, there, e, E)
            a, b = _both_logits(tk, tv, A_high, A_low, B_high, B_low, there, SHARED)
            rk, sums, tops = _compare(tq, tk, a, Sk, zk, mk, R, T)  # [T, R] each
            lk = _lse(sums, tops)
            rv, sums, tops = _compare(tg, tv, b, Sv, zv, mv, R, T)
            lv = _lse(sums, tops)
            _store_moment(moments, 0, lk, start, n, last, R, T)
            _store_moment(moments, 1, lv, start, n, last, R, T)
            _store_moment(moments, 2, rk, start, n, last, R, T)
            _store_moment(moments, 3, rv, start, n, last, R, T)
            p, u = _coefficients(rk, rv, scale, r, R)
            out = _mix(u, tk, a, Sk, zk, mk, R, T)
            Sk, zk, mk = _write(Sk, zk, mk, a, tk)
            Sv, zv, mv = _write(Sv, zv, mv, b, tv)
        else:
            rk, rv = dot_sums(tq, Sk), dot_sums(tg, Sv)
            p, u = _coefficients(rk, rv, scale, r, R)
            out = dot_sums(u.to(tq.dtype), tl.trans(Sk))
            lk, lv = tl.zeros([T, R], tl.float32), tl.zeros([T, R], tl.float32)
        Nk, nk = _write_backward(Nk, nk, u, rk, lk, begin_k, tq)
        Nv, nv = _write_backward(Nv, nv, p, rv, lv, begin_v, tg)
        store(dq, out, tokens, dq_t, inside, c, C)
    _store_slots(dsums, 0, Nk, nk, -begin_k, C, R, D)
    _store_slots(dsums, 1, Nv, nv, -begin_v, E, R, D)


@jit
def _backward_keys(
    dy, q, states, moments, dstates, dk, dv, dcontrols, heads, n, share, parts, backward_parts, scale, k, v, A, B, mask,
    g_b, g_h, g_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t,
    c: tl.constexpr, e: tl.constexpr, r: tl.constexpr, C: tl.constexpr, E: tl.constexpr, R: tl.constexpr,
    D: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr, SHARED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    row, head, first, last = part(heads, n, share)
    q, dy = of(q, row, head, q_b, q_h), of(dy, row, head, g_b, g_h)
    k, v, mask = of(k, row, head, k_b, k_h), of(v, row, head, v_b, v_h), of(mask, row, head, n, 0)
    dk, dv = of(dk, row, head, dk_b, dk_h), of(dv, row, head, dv_b, dv_h)
    A_high, A_low, B_high, B_low = _controls(A, B, k, v, c, e, r, C, E, R, SHARED)
    Nk, nk, _ = _load_slots(dstates, 0, backward_parts, C, R, D, CAUSAL)
    Nv, nv, _ = _load_slots(dstates, 1, backward_parts, E, R, D, CAUSAL)
    dA, dB = tl.zeros([C, R], tl.float32), tl.zeros([E, R], tl.float32)
    if not CAUSAL:
        _, zk, mk = _load_slots(states, 0, parts, C, R, D, CAUSAL)
        _, zv, mv = _load_slots(states, 1, parts, E, R, D, CAUSAL)
        end_k, end_v = _lse(zk, mk), _lse(zv, mv)
    tiles = tl.cdiv(tl.maximum(last - first, 0), T)
    for turn in tl.range(tiles, disable_licm=True):
        start = first + (tiles - 1 - turn) * T  # from the end, since N accumulates in that direction
        tokens = start + tl.arange(0, T)
        inside = tokens < last
        there = visible(mask, tokens, last, MASKED)
        tv = load(v, tokens, v_t, there, e, E)
        if SHARED:
            b = _logits(load(k, tokens, k_t, there, c, C), A_high, A_low, there)  # [T, R]
        else:
            b = _logits(tv, B_high, B_low, there)
        if CAUSAL:
            rk = _load_moment(moments, 2, start, n, last, 0.0, R, T)  # [T, R]
            rv = _load_moment(moments, 3, start, n, last, 0.0, R, T)
            p, u = _coefficients(rk, rv, scale, r, R)
            tg = load(dy, tokens, g_t, inside, e, E)
            gv, gb, Nv, nv = _backward_tile(tg, tv, p, rv, b, Nv, nv, moments, 1, start, n, last, R, T)
        else:
            gv, gb = _backward_from_later(tv, b, end_v, Nv, nv)
        if not SHARED:
            gv = dot(gb.to(tv.dtype), tl.trans(B_high), gv)
            dB = dot(tl.trans(tv), gb.to(tv.dtype), dB)
        store(dv, gv, tokens, dv_t, inside, e, E)
        tk = load(k, tokens, k_t, there, c, C)
        a = _logits(tk, A_high, A_low, there)
        if CAUSAL:
            tq = load(q, tokens, q_t, inside, c, C)
            gk, ga, Nk, nk = _backward_tile(tq, tk, u, rk, a, Nk, nk, moments, 0, start, n, last, R, T)
        else:
            gk, ga = _backward_from_later(tk, a, end_k, Nk, nk)
        if SHARED:
            ga += gb
        gk = dot(ga.to(tk.dtype), tl.trans(A_high), gk)
        dA = dot(tl.trans(tk), ga.to(tk.dtype), dA)
        store(dk, gk, tokens, dk_t, inside, c, C)
    place = (tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * (2 * D * R)
    columns = tl.arange(0, R)[None, :]
    tl.store(dcontrols + place + tl.arange(0, C)[:, None] * R + columns, dA)
    tl.store(dcontrols + place + D * R + tl.arange(0, E)[:, None] * R + columns, dB)


@jit
def _compare(g, x, a, S, z, m, R: tl.constexpr, T: tl.constexpr):
    """rho [T, R], and the sums of weights with the logits they are relative to; 0 where nothing was seen."""
    pairs, ones = _causal(dot(g, tl.trans(x), tl.zeros([T, T], tl.float32)), False, T), _ones(x, False, T)
    rho, sums, tops = tl.zeros([T, R], tl.float32), tl.zeros([T, R], tl.float32), tl.zeros([T, R], tl.float32)
    far, top = dot_sums(g, S), tl.maximum(m, tl.max(a, axis=0))
    leaps, more, passes = _leaps(top, m), 1, 0
    while more > 0:
        weights, since = _weights(a, top, x), tl.exp(tl.minimum(m - top, 0.0))[None, :]
        here = dot(ones, weights, tl.broadcast_to(since * z[None, :], [T, R]))
        now = (sums == 0) & (here >= NEAREST)
        sums, tops = tl.where(now, here, sums), tl.where(now, top[None, :], tops)
        near = dot_single(pairs, weights, tl.zeros([T, R], tl.float32))
        rho = tl.where(now, (near + since * far) / tl.where(now, here, 1.0), rho)
        more, passes = 0, passes + 1
        if leaps & (passes < T):
            top = _top(a, m, sums == 0)
            more = (tl.max(top, axis=0) > LOWEST).to(tl.int32)
    return rho, sums, tops


@jit
def _mix(p, x, a, S, z, m, R: tl.constexpr, T: tl.constexpr):
    """sum_f p_tf X_tf [T, C]."""
    ones, near, far = _ones(x, False, T), tl.zeros([T, T], tl.float32), tl.zeros([T, R], tl.float32)
    sums, top = tl.zeros([T, R], tl.float32), tl.maximum(m, tl.max(a, axis=0))
    leaps, more, passes = _leaps(top, m), 1, 0
    while more > 0:
        weights, since = _weights(a, top, x), tl.exp(tl.minimum(m - top, 0.0))[None, :]
        here = dot(ones, weights, tl.broadcast_to(since * z[None, :], [T, R]))
        now = (sums == 0) & (here >= NEAREST)
        sums = tl.where(now, here, sums)
        until = tl.where(now, p / tl.where(now, here, 1.0), 0.0)
        near, far = dot(until.to(x.dtype), tl.trans(weights), near), far + since * until
        more, passes = 0, passes + 1
        if leaps & (passes < T):
            top = _top(a, m, sums == 0)
            more = (tl.max(top, axis=0) > LOWEST).to(tl.int32)
    return dot(_causal(near, False, T).to(x.dtype), x, dot_sums(far.to(x.dtype), tl.trans(S)))


@jit
def _backward_tile(g, x, p, rho, a, N, n, moments, which, start, tokens, last, R: tl.constexpr, T: tl.constexpr):
    """dx [T, C] and da [T, R] from the tokens of a tile and all after it, and N and n before the tile."""
    begin = _moment_at(moments, which, start - 1, tokens, R)
    end = _moment_at(moments, which, tl.minimum(start + T, last) - 1, tokens, R)
    lse = _load_moment(moments, which, start, tokens, last, LOWEST, R, T)
    weights, near = _backward_within(g, x, p, rho, a, lse, begin, R, T)
    dx, da = _backward_from_later(x, a, end, N, n)
    fade = tl.exp(begin - end)
    N, n = _write_backward(N * fade[None, :], n * fade, p, rho, lse, begin, g)
    return dot(weights, g, dx), da + near, N, n


@jit
def _backward_from_later(x, a, end, N, n):
    """dx and da from the tokens after a tile at whose end the lse is `end`."""
    weights = _weights(a, end, x)
    return dot_sums(weights, tl.trans(N)), weights.to(tl.float32) * (dot_sums(x, N) - n[None, :])


@jit
def _backward_within(g, x, p, rho, a, lse, begin, R: tl.constexpr, T: tl.constexpr):
    """What the tokens of a tile add to da, and the weights of all pairs [s, t] with which they add to dx."""
    pairs, ones = _causal(dot(x, tl.trans(g), tl.zeros([T, T], tl.float32)), True, T), _ones(x, True, T)
    weights, da = tl.zeros([T, T], tl.float32), tl.zeros([T, R], tl.float32)
    left, top = lse, tl.maximum(begin, tl.max(a, axis=0))
    leaps, more, passes = _leaps(top, begin), 1, 0
    while more > 0:
        now = (left > LOWEST) & (left >= top[None, :] - REACH)
        until = tl.where(now, p * tl.exp(tl.minimum(top[None, :] - left, REACH)), 0.0).to(x.dtype)
        since = _weights(a, top, x)
        weights = dot(since, tl.trans(until), weights)
        delta = dot_sums(ones, until.to(tl.float32) * rho)
        da += since.to(tl.float32) * (dot_single(pairs, until, tl.zeros([T, R], tl.float32)) - delta)
        more, passes = 0, passes + 1
        if leaps & (passes < T):
            left = tl.where(now, LOWEST, left)
            top = _top(a, begin, left > LOWEST)
            more = (tl.max(top, axis=0) > LOWEST).to(tl.int32)
    return _causal(weights, True, T).to(x.dtype), da


@jit
def _write(S, z, m, a, x):
    """The slots after the tokens of a tile, relative to their largest logit."""
    top = tl.maximum(m, tl.max(a, axis=0))
    weights, fade = _weights(a, top, x), tl.exp(m - top)
    return dot(tl.trans(x), weights, S * fade[None, :]), z * fade + tl.sum(weights.to(tl.float32), axis=0), top


@jit
def _write_backward(N, n, p, rho, lse, begin, g):
    """N and n with the tokens of a tile, relative to the lse before it."""
    weights = tl.where(lse > LOWEST, p * tl.exp(tl.minimum(begin[None, :] - lse, 0.0)), 0.0).to(g.dtype)
    return dot(tl.trans(g), weights, N), n + tl.sum(weights.to(tl.float32) * rho, axis=0)


@jit
def _weights(a, top, like):
    """exp(a - top) [T, R], at most 1 and in the type of `like`; 0 for hidden tokens."""
    return tl.where(a > LOWEST, tl.exp(tl.minimum(a - top[None, :], 0.0)), 0.0).to(like.dtype)


@jit
def _leaps(top, before):
    """Whether some slot grew so much that one `top` may not reach all tokens of a tile."""
    return tl.max(top - before, axis=0) > REACH / 2


@jit
def _top(a, before, still):
    """The largest logit up to the last token that is still to be done; these are the first ones of a tile."""
    return tl.max(tl.where(still, tl.maximum(a, before[None, :]), LOWEST), axis=0)


@jit
def _causal(pairs, BACKWARD: tl.constexpr, T: tl.constexpr):
    """Pairs [t, s], or backward [s, t], with 0 for s after t."""
    rows, columns = tl.arange(0, T)[:, None], tl.arange(0, T)[None, :]
    return tl.where((rows <= columns) if BACKWARD else (rows >= columns), pairs, 0.0)


@jit
def _ones(like, BACKWARD: tl.constexpr, T: tl.constexpr):
    """A matrix that sums over all s up to each t, or backward over all t from each s on."""
    return _causal(tl.full([T, T], 1.0, tl.float32), BACKWARD, T).to(like.dtype)


@jit
def _softmax(rho, scale, r: tl.constexpr, R: tl.constexpr):
    scores = tl.where((tl.arange(0, R) < r)[None, :], rho * scale, -float("inf"))
    weights = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    return weights / tl.sum(weights, axis=1)[:, None]


@jit
def _coefficients(rho_k, rho_v, scale, r: tl.constexpr, R: tl.constexpr):
    """p, and u, the gradient of q . K."""
    p = _softmax(rho_k, scale, r, R)
    return p, scale * p * (rho_v - tl.sum(p * rho_v, axis=1)[:, None])


@jit
def _lse(z, m):
    return tl.where(z > 0, m + tl.log(tl.where(z > 0, z, 1.0)), LOWEST)


@jit
def _mean(S, z):
    return S / tl.where(z > 0, z, 1.0)[None, :]


@jit
def _controls(
    A, B, k, v, c: tl.constexpr, e: tl.constexpr, r: tl.constexpr, C: tl.constexpr, E: tl.constexpr, R: tl.constexpr,
    SHARED: tl.constexpr,
):  # fmt: skip
    """A [C, R] rounded to the type of k, and the remainder; likewise B [E, R], if it exists."""
    A_high, A_low = halves(load_matrix(A, 0, c, r, C, R).to(tl.float32), k)
    B_high, B_low = A_high, A_low
    if not SHARED:
        B_high, B_low = halves(load_matrix(B, 0, e, r, E, R).to(tl.float32), v)
    return A_high, A_low, B_high, B_low


@jit
def _logits(x, A_high, A_low, there):
    """x A [T, R], LOWEST for hidden tokens."""
    return tl.where(there[:, None], dot_halves(x, A_high, A_low), LOWEST)


@jit
def _both_logits(k, v, A_high, A_low, B_high, B_low, there, SHARED: tl.constexpr):
    a = _logits(k, A_high, A_low, there)
    b = a
    if not SHARED:
        b = _logits(v, B_high, B_low, there)
    return a, b


@jit
def _load_moment(moments, which, start, n, last, beyond: tl.constexpr, R: tl.constexpr, T: tl.constexpr):
    """l or rho of a tile [T, R]; beyond the end l is LOWEST, as where nothing was seen."""
    tokens = start + tl.arange(0, T)
    at, real = tile(tokens, R, tokens < last, R, R)
    return tl.load(moments + _moment(which, n, R) + at, mask=real, other=beyond)


@jit
def _store_moment(moments, which, moment, start, n, last, R: tl.constexpr, T: tl.constexpr):
    tokens = start + tl.arange(0, T)
    store(moments + _moment(which, n, R), moment, tokens, R, tokens < last, R, R)


@jit
def _moment_at(moments, which, token, n, R: tl.constexpr):
    """l at one token [R]; LOWEST before the first."""
    at = _moment(which, n, R) + token.to(tl.int64) * R + tl.arange(0, R)
    return tl.load(moments + at, mask=token >= 0, other=LOWEST)


@jit
def _moment(which, n, R: tl.constexpr):
    return (which * tl.num_programs(0).to(tl.int64) + tl.program_id(0)) * n * R


@jit
def _load_slots(
    states, which, parts, C: tl.constexpr, R: tl.constexpr, D: tl.constexpr, OF_PART: tl.constexpr,
    MEMORIES: tl.constexpr = BOTH,
):  # fmt: skip
    """S, z and m before this part, or after the last one."""
    part = parts
    if OF_PART:
        part = tl.program_id(1)
    states += _slots(part, which, R, D, MEMORIES)
    slots = tl.arange(0, R)
    S = tl.load(states + tl.arange(0, C)[:, None] * R + slots[None, :])
    return S, tl.load(states + D * R + slots), tl.load(states + (D + 1) * R + slots)


@jit
def _store_slots(
    sums, which, S, z, m, C: tl.constexpr, R: tl.constexpr, D: tl.constexpr, MEMORIES: tl.constexpr = BOTH
):  # fmt: skip
    sums += _slots(tl.program_id(1), which, R, D, MEMORIES)
    slots = tl.arange(0, R)
    tl.store(sums + tl.arange(0, C)[:, None] * R + slots[None, :], S)
    tl.store(sums + D * R + slots, z)
    tl.store(sums + (D + 1) * R + slots, m)


@jit
def _slots(part, which, R: tl.constexpr, D: tl.constexpr, MEMORIES: tl.constexpr):
    """Where a memory of this row and head lies in [p pairs memories d+2 r]."""
    return ((part * tl.num_programs(0).to(tl.int64) + tl.program_id(0)) * MEMORIES + which) * ((D + 2) * R)
