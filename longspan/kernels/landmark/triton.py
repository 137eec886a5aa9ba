"""Landmark attention in Triton: every token is read once, the landmarks stay on chip.

    pool      P_rj = exp(s_rj - lse_r)      y_r = sum_j P_rj v_j
    backward  ds_rj = P_rj (dy_r . v_j - delta_r)      delta_r = dy_r . y_r - dlse_r
              dv_j = sum_r P_rj dy_r      dq_r = sum_j ds_rj k_j      dk_j = sum_r ds_rj (q_r - 2 key_norm k_j)

    attend    y_i = sum_r u_ir v_r      u_i = w_i / sum_r w_ir
    backward  ds_ir = u_ir (dy_i . v_r - dy_i . y_i)      da_ir = ds_ir / a_ir, 0 where a is at its floor
              dtau_ir = beta t_ir (da_ir - sum_r t_ir da_ir)      dq_i = sum_r ds_ir k_r + dtau_ir center_r
              dv_r = sum_i u_ir dy_i      dk_r = sum_i ds_ir q_i      dcenter_r = sum_i dtau_ir q_i
              dshift_r = sum_i ds_ir      dbase_r = sum_i da_ir

With a STEP query r of the pool sees only the tokens j <= r STEP, and no program visits tokens that no query sees.

A program owns a part of the tokens of one head and all landmarks. The results of the parts, and their sums over tokens,
are merged in order, so that the kernels are deterministic. Backward recomputes the weights, from `lse` or from the
queries. Products of bfloat16 tiles use tensor cores. Operands in single precision (the landmarks, dy of the pool, P and
u) enter them as two tiles, the rounded value and the remainder, and so keep their precision; only ds and dtau are
rounded. Products of float32 are not rounded at all.
"""

import math
from typing import no_type_check  # Triton functions are not Python functions, nor are their annotations types

import triton
import triton.language as tl

from longspan.kernels.tiles import (
    dot,
    dot_halves,
    dot_single,
    halves,
    halves_dot,
    load,
    load_matrix,
    load_visible,
    of,
    online_softmax,
    part,
    single_dot_halves,
    store,
    store_matrix,
    visible,
)

LOG2E = tl.constexpr(math.log2(math.e))


@triton.jit
@no_type_check
def pool(
    q, k, v, mask, partial_y, partial_lse, heads, n, share, key_norm, k_b, k_h, k_t, v_b, v_h, v_t,
    r: tl.constexpr, c: tl.constexpr, e: tl.constexpr, R: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
    T: tl.constexpr, MASKED: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    row, head, first, last = part(heads, n, share)
    pair = tl.program_id(0).to(tl.int64)
    k, v = of(k, row, head, k_b, k_h), of(v, row, head, v_b, v_h)
    if MASKED:
        mask += row.to(tl.int64) * n
    few, rest = halves(load_matrix(q, pair, r, c, R, C) * LOG2E, k)  # [R, C]
    top, total = tl.full([R], float("-inf"), tl.float32), tl.zeros([R], tl.float32)
    y = tl.zeros([R, E], tl.float32)
    if STEP:  # no query sees any further
        last = tl.minimum(last, (r - 1) * STEP + 1)
    for start in range(first, last, T):
        tokens = start + tl.arange(0, T)
        seen = visible(mask, tokens, last, MASKED)
        keys = load(k, tokens, k_t, seen, c, C)  # [T, C]
        values = load(v, tokens, v_t, seen, e, E)  # [T, E]
        single = keys.to(tl.float32)
        s = halves_dot(few, rest, tl.trans(keys))  # [R, T]
        s -= (tl.sum(single * single, axis=1) * (key_norm * LOG2E))[None, :]
        s = tl.where(seen[None, :], s, float("-inf"))
        if STEP:
            s = tl.where(tokens[None, :] <= tl.arange(0, R)[:, None] * STEP, s, float("-inf"))
        P, top, total, y = online_softmax(s, top, total, y)
        y = dot_single(P, values, y)
    place = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + pair
    queries, some = tl.arange(0, R), tl.where(total > 0, total, 1.0)
    store_matrix(partial_y, y / some[:, None], place, r, e, R, E)
    lse = tl.where(total > 0, top / LOG2E + tl.log(some), float("-inf"))
    tl.store(partial_lse + place * r + queries, lse, mask=queries < r)


@triton.jit
@no_type_check
def merge(partial_y, partial_lse, y, lse, parts, rows, e: tl.constexpr, E: tl.constexpr, B: tl.constexpr):
    """The parts weighted by their sums; 0 where no part has seen a key."""
    queries, channels = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B), tl.arange(0, E)
    real = (queries < rows)[:, None] & (channels < e)[None, :]
    top = tl.full([B], -1e38, tl.float32)  # finite, since it is subtracted
    for i in range(parts):
        at = i * rows + queries
        top = tl.maximum(top, tl.load(partial_lse + at, mask=queries < rows, other=float("-inf")))
    total, sums = tl.zeros([B], tl.float32), tl.zeros([B, E], tl.float32)
    for i in range(parts):
        at = i * rows + queries
        weight = tl.exp(tl.load(partial_lse + at, mask=queries < rows, other=float("-inf")) - top)
        total += weight
        sums += weight[:, None] * tl.load(partial_y + at[:, None] * e + channels[None, :], mask=real, other=0.0)
    some = tl.where(total > 0, total, 1.0)
    tl.store(y + queries[:, None] * e + channels[None, :], sums / some[:, None], mask=real)
    tl.store(lse + queries, tl.where(total > 0, top + tl.log(some), 0.0), mask=queries < rows)


@triton.jit
@no_type_check
def pool_backward(
    dy, dlse, q, y, lse, k, v, mask, dq, dk, dv, heads, n, share, key_norm,
    k_b, k_h, k_t, v_b, v_h, v_t, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t,
    r: tl.constexpr, c: tl.constexpr, e: tl.constexpr, R: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
    T: tl.constexpr, MASKED: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    row, head, first, last = part(heads, n, share)
    pair = tl.program_id(0).to(tl.int64)
    k, v = of(k, row, head, k_b, k_h), of(v, row, head, v_b, v_h)
    dk, dv = of(dk, row, head, dk_b, dk_h), of(dv, row, head, dv_b, dv_h)
    if MASKED:
        mask += row.to(tl.int64) * n
    dfew = tl.zeros([R, C], tl.float32)
    few, rest = halves(load_matrix(q, pair, r, c, R, C), k)  # [R, C]
    exact = load_matrix(dy, pair, r, e, R, E)  # [R, E]
    delta = tl.sum(exact * load_matrix(y, pair, r, e, R, E), axis=1) - _vector(dlse, pair, r, R)
    g, rest_g = halves(exact, k)
    for start in range(first, last, T):
        tokens = start + tl.arange(0, T)
        seen = visible(mask, tokens, last, MASKED)
        keys = load(k, tokens, k_t, seen, c, C)  # [T, C]
        values = load(v, tokens, v_t, seen, e, E)  # [T, E]
        single = keys.to(tl.float32)
        s = dot_halves(keys, tl.trans(few), tl.trans(rest))  # [T, R]
        # lse is reloaded for every tile: keeping it would cost registers
        s -= (tl.sum(single * single, axis=1) * key_norm)[:, None] + _vector(lse, pair, r, R)[None, :]
        P = tl.exp(tl.minimum(s, 0.0))  # forward rounds differently, so that s may be above lse
        P = tl.where(seen[:, None], P, 0.0)
        if STEP:
            P = tl.where(tokens[:, None] <= tl.arange(0, R)[None, :] * STEP, P, 0.0)
        ds = P * (dot_halves(values, tl.trans(g), tl.trans(rest_g)) - delta[None, :])
        store(dv, single_dot_halves(P, g, rest_g), tokens, dv_t, tokens < last, e, E)
        rounded = ds.to(keys.dtype)
        dfew = dot(tl.trans(rounded), keys, dfew)
        dkeys = dot(rounded, few, single * (tl.sum(ds, axis=1) * (-2 * key_norm))[:, None])
        store(dk, dkeys, tokens, dk_t, tokens < last, c, C)
    store_matrix(dq, dfew, tl.program_id(1).to(tl.int64) * tl.num_programs(0) + pair, r, c, R, C)


@triton.jit
@no_type_check
def attend(
    q, k, v, shift, center, base, mask, y, heads, n, share, beta, q_b, q_h, q_t, y_b, y_h, y_t,
    r: tl.constexpr, c: tl.constexpr, e: tl.constexpr, R: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
    T: tl.constexpr, floor: tl.constexpr, SHIFTED: tl.constexpr, FACTOR: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    row, head, first, last = part(heads, n, share)
    pair = tl.program_id(0).to(tl.int64)
    q, y = of(q, row, head, q_b, q_h), of(y, row, head, y_b, y_h)
    if MASKED:
        mask += row.to(tl.int64) * n
    keys, rest = halves(load_matrix(k, pair, r, c, R, C), q)  # [R, C]
    values, rest_values = halves(load_matrix(v, pair, r, e, R, E), q)  # [R, E]
    middle, rest_middle = keys, rest
    if FACTOR:
        middle, rest_middle = halves(load_matrix(center, pair, r, c, R, C), q)
    for start in range(first, last, T):
        tokens = start + tl.arange(0, T)
        queries = load_visible(q, mask, tokens, last, q_t, c, C, MASKED)  # [T, C]
        start_of = _start(shift, pair, r, R, SHIFTED)  # [R], reloaded each time to save registers
        u = _exponentials(queries, keys, rest, start_of)  # [T, R]
        if FACTOR:
            t = _normalize(_exponentials(queries, middle, rest_middle, _without_shift(start_of)))
            u *= tl.maximum(_vector(base, pair, r, R)[None, :] + beta * t, floor)
        d = tl.sum(u, axis=1)
        found = single_dot_halves(u, values, rest_values) / tl.where(d > 0, d, 1.0)[:, None]
        store(y, found, tokens, y_t, tokens < last, e, E)


@triton.jit
@no_type_check
def attend_backward(
    dy, q, k, v, shift, center, base, mask, dq, few, starts, heads, n, share, beta,
    g_b, g_h, g_t, q_b, q_h, q_t, dq_b, dq_h, dq_t,
    r: tl.constexpr, c: tl.constexpr, e: tl.constexpr, R: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
    T: tl.constexpr, floor: tl.constexpr, SHIFTED: tl.constexpr, FACTOR: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    row, head, first, last = part(heads, n, share)
    pair = tl.program_id(0).to(tl.int64)
    dy, q, dq = of(dy, row, head, g_b, g_h), of(q, row, head, q_b, q_h), of(dq, row, head, dq_b, dq_h)
    if MASKED:
        mask += row.to(tl.int64) * n
    keys, rest = halves(load_matrix(k, pair, r, c, R, C), q)  # [R, C]
    values, rest_values = halves(load_matrix(v, pair, r, e, R, E), q)  # [R, E]
    dkeys, dvalues, rows = tl.zeros([R, C], tl.float32), tl.zeros([R, E], tl.float32), tl.arange(0, R)
    middle, rest_middle, dmiddle = keys, rest, dkeys
    starts += pair * tl.cdiv(n, T) * (2 * r if FACTOR else r)
    if FACTOR:
        middle, rest_middle = halves(load_matrix(center, pair, r, c, R, C), q)
    for start in range(first, last, T):
        tokens = start + tl.arange(0, T)
        queries = load_visible(q, mask, tokens, last, q_t, c, C, MASKED)  # [T, C]
        g = load(dy, tokens, g_t, tokens < last, e, E)  # [T, E], 0 beyond the last query
        start_of = _start(shift, pair, r, R, SHIFTED)  # [R]
        u = _exponentials(queries, keys, rest, start_of)  # [T, R]
        if FACTOR:
            t = _normalize(_exponentials(queries, middle, rest_middle, _without_shift(start_of)))
            u *= tl.maximum(_vector(base, pair, r, R)[None, :] + beta * t, floor)
        u = _normalize(u)
        dvalues = dot_single(tl.trans(u), g, dvalues)
        x = dot_halves(g, tl.trans(values), tl.trans(rest_values))
        ds = u * (x - tl.sum(u * x, axis=1)[:, None])
        starts_at = starts + (start // T) * (2 * r if FACTOR else r) + rows
        tl.store(starts_at, tl.sum(ds, axis=0), mask=rows < r)  # of this tile only, to save registers
        rounded = ds.to(queries.dtype)
        dkeys = dot(tl.trans(rounded), queries, dkeys)
        if FACTOR:
            a = _vector(base, pair, r, R)[None, :] + beta * t
            da = tl.where(a >= floor, ds / a, 0.0)
            tl.store(starts_at + r, tl.sum(da, axis=0), mask=rows < r)
            dtau = (beta * t * (da - tl.sum(t * da, axis=1)[:, None])).to(queries.dtype)
            dmiddle = dot(tl.trans(dtau), queries, dmiddle)
        dqueries = tl.dot(rounded, keys, input_precision="ieee")
        if FACTOR:
            dqueries = dot(dtau, middle, dqueries)
        if MASKED:
            dqueries = tl.where(visible(mask, tokens, last, MASKED)[:, None], dqueries, 0.0)
        store(dq, dqueries, tokens, dq_t, tokens < last, c, C)
    width = c + e + (c if FACTOR else 0)
    few += (tl.program_id(1).to(tl.int64) * tl.num_programs(0) + pair) * (r * width)
    store(few, dkeys, rows, width, rows < r, c, C)
    store(few + c, dvalues, rows, width, rows < r, e, E)
    if FACTOR:
        store(few + c + e, dmiddle, rows, width, rows < r, c, C)


@triton.jit
@no_type_check
def _exponentials(queries, keys, rest, start_of):
    """exp(queries @ (keys + rest)^T + start_of) relative to the largest of each query; 0 where that is -inf."""
    logits = dot_halves(queries, tl.trans(keys), tl.trans(rest)) + start_of[None, :]
    top = tl.max(logits, axis=1)
    return tl.exp(logits - tl.where(top == float("-inf"), 0.0, top)[:, None])


@triton.jit
@no_type_check
def _normalize(weights):
    """Divided by their sum over the landmarks, where that is positive."""
    total = tl.sum(weights, axis=1)
    return weights * (1 / tl.where(total > 0, total, 1.0))[:, None]


@triton.jit
@no_type_check
def _start(shift, pair, r: tl.constexpr, R: tl.constexpr, SHIFTED: tl.constexpr):
    """What is added to the logits of each key [R]: -inf beyond the last."""
    rows = tl.arange(0, R)
    found = tl.where(rows < r, 0.0, float("-inf"))
    if SHIFTED:
        found = tl.load(shift + pair * r + rows, mask=rows < r, other=float("-inf"))
    return found


@triton.jit
@no_type_check
def _without_shift(start_of):
    """0 for visible keys, -inf for the others."""
    return tl.where(start_of == float("-inf"), float("-inf"), 0.0)


@triton.jit
@no_type_check
def _vector(x, pair, r: tl.constexpr, R: tl.constexpr):
    rows = tl.arange(0, R)
    return tl.load(x + pair * r + rows, mask=rows < r, other=0.0)
