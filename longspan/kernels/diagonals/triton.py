"""Attention over diagonals in Triton: a program has a tile of tokens of one head, and visits one offset at a time.

Neighbouring queries look at neighbouring keys, so that a tile of keys is read as a whole, and what programs share stays
in the cache. In the backward pass a program takes its tokens as queries and, at the opposite offset, as keys: it alone
writes their gradients, hence it is deterministic.
"""

from typing import no_type_check  # Triton functions are not Python functions, nor are their annotations types

import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.launch import next_power_of_2
from longspan.kernels.tiles import jit, load, of, store

NUMBERS = 4_096  # elements of a tile


def launch(q: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n e"]) -> dict[str, int]:
    """Widths, the powers of two they are padded to, tokens of a program, and its warps."""
    c, e = q.shape[3], v.shape[3]
    C, E = next_power_of_2(c), next_power_of_2(e)
    return {"c": c, "e": e, "C": C, "E": E, "T": max(16, NUMBERS // max(C, E)), "num_warps": 4}


@jit
@no_type_check
def forward(
    q, k, v, y, lse, offsets, count, mask, rows, n, heads, scale,
    q_row, q_head, q_token, k_row, k_head, k_token, v_row, v_head, v_token, y_row, y_head, y_token,
    c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
    MASKED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    pair, i = tl.program_id(1), tl.program_id(0) * T + tl.arange(0, T)
    row, head = pair // heads, pair % heads
    q, k, v = of(q, row, head, q_row, q_head), of(k, row, head, k_row, k_head), of(v, row, head, v_row, v_head)
    query = load(q, i, q_token, i < n, c, C).to(tl.float32)  # [T, C]
    top, total, sums = tl.full([T], float("-inf"), tl.float32), tl.zeros([T], tl.float32), tl.zeros([T, E], tl.float32)
    for place in range(count):
        j = i - tl.load(offsets + place)
        seen = _seen(mask, rows, row, i, j, i, j, n, MASKED, ROWS)
        score = tl.sum(query * load(k, j, k_token, seen, c, C).to(tl.float32), axis=1) * scale
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(top, score)
        base = tl.where(higher == float("-inf"), 0.0, higher)  # so far nothing is visible
        weight, fade = tl.exp(score - base), tl.exp(top - base)
        sums = sums * fade[:, None] + weight[:, None] * load(v, j, v_token, seen, e, E).to(tl.float32)
        total, top = total * fade + weight, higher
    alone = total == 0
    total = tl.where(alone, 1.0, total)
    tl.store(lse + pair.to(tl.int64) * n + i, tl.where(alone, float("inf"), top + tl.log(total)), mask=i < n)
    store(of(y, row, head, y_row, y_head), sums / total[:, None], i, y_token, i < n, e, E)


@jit
@no_type_check
def backward(
    dy, delta, lse, q, k, v, dq, dk, dv, offsets, count, mask, rows, n, heads, scale,
    dy_row, dy_head, dy_token, q_row, q_head, q_token, k_row, k_head, k_token, v_row, v_head, v_token,
    dq_row, dq_head, dq_token, dk_row, dk_head, dk_token, dv_row, dv_head, dv_token,
    c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
    MASKED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    pair, t = tl.program_id(1), tl.program_id(0) * T + tl.arange(0, T)
    row, head = pair // heads, pair % heads
    q, k, v = of(q, row, head, q_row, q_head), of(k, row, head, k_row, k_head), of(v, row, head, v_row, v_head)
    dy, lse, delta = of(dy, row, head, dy_row, dy_head), lse + pair.to(tl.int64) * n, delta + pair.to(tl.int64) * n
    query, key = load(q, t, q_token, t < n, c, C).to(tl.float32), load(k, t, k_token, t < n, c, C).to(tl.float32)
    value, gradient = load(v, t, v_token, t < n, e, E).to(tl.float32), load(dy, t, dy_token, t < n, e, E).to(tl.float32)
    own_lse = tl.load(lse + t, mask=t < n, other=float("inf"))
    own_delta = tl.load(delta + t, mask=t < n, other=0.0)
    q_grad, k_grad = tl.zeros([T, C], tl.float32), tl.zeros([T, C], tl.float32)
    v_grad = tl.zeros([T, E], tl.float32)
    for place in range(count):
        offset = tl.load(offsets + place)
        j = t - offset  # the keys of this program's tokens
        seen = _seen(mask, rows, row, t, j, t, j, n, MASKED, ROWS)
        other = load(k, j, k_token, seen, c, C).to(tl.float32)
        p = tl.where(seen, tl.exp(tl.sum(query * other, axis=1) * scale - own_lse), 0.0)
        ds = p * (tl.sum(gradient * load(v, j, v_token, seen, e, E).to(tl.float32), axis=1) - own_delta)
        q_grad += ds[:, None] * other
        i = t + offset  # the queries whose keys are this program's tokens
        seen = _seen(mask, rows, row, i, t, t, i, n, MASKED, ROWS)
        other, theirs = load(q, i, q_token, seen, c, C).to(tl.float32), load(dy, i, dy_token, seen, e, E).to(tl.float32)
        their_lse = tl.load(lse + i, mask=seen, other=float("inf"))
        p = tl.where(seen, tl.exp(tl.sum(key * other, axis=1) * scale - their_lse), 0.0)
        v_grad += p[:, None] * theirs
        ds = p * (tl.sum(value * theirs, axis=1) - tl.load(delta + i, mask=seen, other=0.0))
        k_grad += ds[:, None] * other
    store(of(dq, row, head, dq_row, dq_head), q_grad * scale, t, dq_token, t < n, c, C)
    store(of(dk, row, head, dk_row, dk_head), k_grad * scale, t, dk_token, t < n, c, C)
    store(of(dv, row, head, dv_row, dv_head), v_grad, t, dv_token, t < n, e, E)


@jit
@no_type_check
def _seen(mask, rows, row, i, key, own, other, n, MASKED: tl.constexpr, ROWS: tl.constexpr):
    """Which queries i see their keys; `own` are the tokens of the program, `other` those at the offset."""
    seen = (own < n) & (other >= 0) & (other < n)
    start = row.to(tl.int64) * n
    if MASKED:
        seen = seen & (tl.load(mask + start + key, mask=seen, other=0) != 0)
    if ROWS:
        here, there = tl.load(rows + start + i, mask=seen, other=-1), tl.load(rows + start + key, mask=seen, other=-2)
        seen = seen & (here == there)
    return seen
