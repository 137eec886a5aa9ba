"""Many queries over a few keys in Triton: a program has all keys, so that a tile of queries needs nothing but itself.

With u_i the weights w_i divided by their sum:

    forth   y_i = sum_r u_ir v_r
    back    ds_ir = u_ir (dy_i . v_r - dy_i . y_i)      da_ir = ds_ir / a_ir, 0 where a is at its floor
            dtau_ir = beta t_ir (da_ir - sum_r t_ir da_ir)      dq_i = sum_r ds_ir k_r + dtau_ir center_r
            dv_r = sum_i u_ir dy_i      dk_r = sum_i ds_ir q_i      dcenter_r = sum_i dtau_ir q_i
            dshift_r = sum_i ds_ir      dbase_r = sum_i da_ir

Back everything comes again from the queries: nothing is kept. A program owns a part of the queries of one head, writes
its sums over them, and these are added in order, so that no two runs differ. Tiles of bfloat16 meet in tensor cores.
What is single precision, the keys, the values and u, goes in as two tiles, its rounded self and the rest, and so keeps
its precision; only what makes dq, dk and dcenter is rounded. Products of float32 are not rounded at all.
"""

from typing import no_type_check  # a Triton function is no Python function, and its annotations are no types

import triton
import triton.language as tl
from jaxtyping import Float, UInt8
from torch import Tensor

from longspan.kernels.few_keys.reference import FLOOR
from longspan.kernels.few_queries.shapes import parts_of, share_of
from longspan.kernels.launch import next_power_of_2
from longspan.kernels.tiles import (
    dot,
    dot_halves,
    dot_single,
    halves,
    load,
    load_matrix,
    load_visible,
    of,
    part,
    single_dot_halves,
    store,
    visible,
)

# Tokens of a tile, warps of a program and tiles in flight, forth and back, by bytes of a number and whether a number or
# width is above 64.
FORTH = {(2, False): (64, 4, 2), (2, True): (64, 4, 2), (4, False): (16, 8, 2)}
BACK = {(2, False): (64, 4, 2), (2, True): (64, 4, 2), (4, False): (16, 8, 2)}


def read(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h r c"],
    v: Float[Tensor, "b h r e"],
    mask: UInt8[Tensor, "b n"] | None,
    beta: float,
    y: Float[Tensor, "b h n e"],
    shift: Float[Tensor, "b h r"] | None,
    center: Float[Tensor, "b h r c"] | None,
    base: Float[Tensor, "b h r"] | None,
) -> None:
    """Fill in y."""
    b, h, n = q.shape[:3]
    parts = parts_of(b * h, n)
    _read[(b * h, parts)](
        q, k, v, shift, center, base, mask, y, h, n, share_of(parts, n), beta, *q.stride()[:3], *y.stride()[:3],
        **_launch(FORTH, q, k, v, shift, center, mask),
    )  # fmt: skip


def back(
    dy: Float[Tensor, "b h n e"],
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h r c"],
    v: Float[Tensor, "b h r e"],
    mask: UInt8[Tensor, "b n"] | None,
    beta: float,
    dq: Float[Tensor, "b h n c"],
    shift: Float[Tensor, "b h r"] | None,
    center: Float[Tensor, "b h r c"] | None,
    base: Float[Tensor, "b h r"] | None,
) -> tuple[Float[Tensor, "b h r widths"], Float[Tensor, "b h _ r"]]:
    """Fill in dq; gives the gradients of k, v and center side by side, and of shift and base."""
    (b, h, n, c), r, e, how = q.shape, k.shape[2], v.shape[3], _launch(BACK, q, k, v, shift, center, mask)
    parts, tiles = parts_of(b * h, n), -(-n // how["T"])
    few = k.new_empty(parts, b, h, r, c + e + (0 if center is None else c))
    starts = k.new_empty(b, h, tiles, 1 if center is None else 2, r)
    _back[(b * h, parts)](
        dy, q, k, v, shift, center, base, mask, dq, few, starts, h, n, share_of(parts, n), beta,
        *dy.stride()[:3], *q.stride()[:3], *dq.stride()[:3], **how,
    )  # fmt: skip
    return few.sum(dim=0), starts.sum(dim=2)


def _launch(
    tiles: dict, q: Tensor, k: Tensor, v: Tensor, shift: Tensor | None, center: Tensor | None, mask: Tensor | None
) -> dict:
    r, c, e = k.shape[2], k.shape[3], v.shape[3]
    T, warps, stages = tiles[q.element_size(), max(r, c, e) > 64]
    sizes = {
        "r": r,
        "c": c,
        "e": e,
        "R": next_power_of_2(r),
        "C": next_power_of_2(c),
        "E": next_power_of_2(e),
        "T": T,
        "floor": FLOOR,
    }
    flags = {"SHIFTED": shift is not None, "FACTOR": center is not None, "MASKED": mask is not None}
    return sizes | flags | {"num_warps": warps, "num_stages": stages}


@triton.jit
@no_type_check
def _read(
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
        start_of = _start(shift, pair, r, R, SHIFTED)  # [R], read anew: kept, it would cost more registers than a tile
        u = _exponentials(queries, keys, rest, start_of)  # [T, R]
        if FACTOR:
            t = _shares(_exponentials(queries, middle, rest_middle, _only(start_of)))
            u *= tl.maximum(_vector(base, pair, r, R)[None, :] + beta * t, floor)
        d = tl.sum(u, axis=1)
        found = single_dot_halves(u, values, rest_values) / tl.where(d > 0, d, 1.0)[:, None]
        store(y, found, tokens, y_t, tokens < last, e, E)


@triton.jit
@no_type_check
def _back(
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
        start_of = _start(shift, pair, r, R, SHIFTED)  # [R], read anew
        u = _exponentials(queries, keys, rest, start_of)  # [T, R]
        if FACTOR:
            t = _shares(_exponentials(queries, middle, rest_middle, _only(start_of)))
            u *= tl.maximum(_vector(base, pair, r, R)[None, :] + beta * t, floor)
        u = _shares(u)
        dvalues = dot_single(tl.trans(u), g, dvalues)
        x = dot_halves(g, tl.trans(values), tl.trans(rest_values))
        ds = u * (x - tl.sum(u * x, axis=1)[:, None])
        starts_at = starts + (start // T) * (2 * r if FACTOR else r) + rows
        tl.store(starts_at, tl.sum(ds, axis=0), mask=rows < r)  # of this tile: kept, a sum would cost more registers
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
    """Of queries @ (keys + rest)^T + start_of, each relative to the largest of its query; 0 where that is -inf."""
    logits = dot_halves(queries, tl.trans(keys), tl.trans(rest)) + start_of[None, :]
    top = tl.max(logits, axis=1)
    return tl.exp(logits - tl.where(top == float("-inf"), 0.0, top)[:, None])


@triton.jit
@no_type_check
def _shares(weights):
    """Divided by their sum over the few, where there is any."""
    total = tl.sum(weights, axis=1)
    return weights * (1 / tl.where(total > 0, total, 1.0))[:, None]


@triton.jit
@no_type_check
def _start(shift, pair, r: tl.constexpr, R: tl.constexpr, SHIFTED: tl.constexpr):
    """What logits of a key begin with [R]: -inf beyond the last."""
    rows = tl.arange(0, R)
    found = tl.where(rows < r, 0.0, float("-inf"))
    if SHIFTED:
        found = tl.load(shift + pair * r + rows, mask=rows < r, other=float("-inf"))
    return found


@triton.jit
@no_type_check
def _only(start_of):
    """0 for the keys that are there, -inf for the others."""
    return tl.where(start_of == float("-inf"), float("-inf"), 0.0)


@triton.jit
@no_type_check
def _vector(x, pair, r: tl.constexpr, R: tl.constexpr):
    rows = tl.arange(0, R)
    return tl.load(x + pair * r + rows, mask=rows < r, other=0.0)
