"""A few queries over many keys in Triton: forth and back every key and value is read once, and nothing else is large.

    forth   P_rj = exp(s_rj - level_r)      y_r = sum_j P_rj v_j
    back    ds_rj = P_rj (dy_r . v_j - dy_r . y_r + dlevel_r)
            dv_j = sum_r P_rj dy_r      dq_r = sum_j ds_rj k_j      dk_j = sum_r ds_rj (q_r - 2 half k_j)

A program owns a part of the keys of one head and all queries. Forth it knows the keys it has seen so far, and what
parts found is put together in their order; back P comes again from `level`, and the dq of all parts are added up: no
two runs differ. Tiles of bfloat16 meet in tensor cores. What is single precision, the queries, dy and P, goes in as two
tiles, its rounded self and the rest, and so keeps its precision; only what makes dq and dk is rounded. Products of
float32 are not rounded at all.
"""

from typing import no_type_check  # a Triton function is no Python function, and its annotations are no types

import torch
import triton
import triton.language as tl
from jaxtyping import Float, UInt8
from torch import Tensor

from longspan.kernels.few_queries.shapes import parts_of, share_of
from longspan.kernels.launch import next_power_of_2
from longspan.kernels.tiles import (
    dot,
    dot_halves,
    dot_single,
    halves,
    halves_dot,
    load,
    load_matrix,
    of,
    part,
    single_dot_halves,
    store,
    store_matrix,
    visible,
)

# Tokens of a tile, warps of a program and tiles in flight, forth and back, by bytes of a number and whether a number or
# width is above 64.
FORTH = {(2, False): (64, 4, 3), (2, True): (64, 4, 2), (4, False): (16, 8, 2)}
BACK = {(2, False): (64, 4, 2), (2, True): (64, 4, 2), (4, False): (16, 8, 2)}
MERGED = 16  # queries whose parts a program puts together

LEAST = tl.constexpr(-1e38)  # the largest logit of no keys at all, from which others can still be subtracted


def collect(
    q: Float[Tensor, "b h r c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    mask: UInt8[Tensor, "b m"] | None,
    half: float,
) -> tuple[Float[Tensor, "b h r e"], Float[Tensor, "b h r"]]:
    (b, h, r, _), m, e = q.shape, k.shape[2], v.shape[3]
    parts, rows = parts_of(b * h, m), b * h * r
    found, levels = q.new_empty(parts, b, h, r, e), q.new_empty(parts, b, h, r)
    _collect[(b * h, parts)](
        q, k, v, mask, found, levels, h, m, share_of(parts, m), half, *k.stride()[:3], *v.stride()[:3],
        MASKED=mask is not None, **_launch(FORTH, q, k, v),
    )  # fmt: skip
    y, level = torch.empty_like(found[0]), torch.empty_like(levels[0])
    _merge[(triton.cdiv(rows, MERGED),)](found, levels, y, level, parts, rows, e=e, E=next_power_of_2(e), B=MERGED)
    return y, level


def back(
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    mask: UInt8[Tensor, "b m"] | None,
    half: float,
    dk: Float[Tensor, "b h m c"],
    dv: Float[Tensor, "b h m e"],
    dy: Float[Tensor, "b h r e"],
    dlevel: Float[Tensor, "b h r"],
    q: Float[Tensor, "b h r c"],
    y: Float[Tensor, "b h r e"],
    level: Float[Tensor, "b h r"],
) -> Float[Tensor, "b h r c"]:
    """Fill in dk and dv; gives dq."""
    (b, h), m = q.shape[:2], k.shape[2]
    parts = parts_of(b * h, m)
    dq = q.new_empty(parts, *q.shape)
    _back[(b * h, parts)](
        dy, dlevel, q, y, level, k, v, mask, dq, dk, dv, h, m, share_of(parts, m), half,
        *k.stride()[:3], *v.stride()[:3], *dk.stride()[:3], *dv.stride()[:3],
        MASKED=mask is not None, **_launch(BACK, q, k, v),
    )  # fmt: skip
    return dq.sum(dim=0)


def _launch(tiles: dict, q: Tensor, k: Tensor, v: Tensor) -> dict[str, int]:
    r, c, e = q.shape[2], q.shape[3], v.shape[3]
    T, warps, stages = tiles[k.element_size(), max(r, c, e) > 64]
    sizes = {"r": r, "c": c, "e": e, "R": next_power_of_2(r), "C": next_power_of_2(c), "E": next_power_of_2(e), "T": T}
    return sizes | {"num_warps": warps, "num_stages": stages}


@triton.jit
@no_type_check
def _collect(
    q, k, v, mask, found, levels, heads, n, share, half, k_b, k_h, k_t, v_b, v_h, v_t,
    r: tl.constexpr, c: tl.constexpr, e: tl.constexpr, R: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
    T: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    row, head, first, last = part(heads, n, share)
    pair = tl.program_id(0).to(tl.int64)
    k, v = of(k, row, head, k_b, k_h), of(v, row, head, v_b, v_h)
    if MASKED:
        mask += row.to(tl.int64) * n
    few, rest = halves(load_matrix(q, pair, r, c, R, C), k)  # [R, C]
    top, total = tl.full([R], LEAST, tl.float32), tl.zeros([R], tl.float32)
    y = tl.zeros([R, E], tl.float32)
    for start in range(first, last, T):
        tokens = start + tl.arange(0, T)
        seen = visible(mask, tokens, last, MASKED)
        keys = load(k, tokens, k_t, seen, c, C)  # [T, C]
        values = load(v, tokens, v_t, seen, e, E)  # [T, E]
        single = keys.to(tl.float32)
        s = halves_dot(few, rest, tl.trans(keys))  # [R, T]
        s -= (tl.sum(single * single, axis=1) * half)[None, :]
        s = tl.where(seen[None, :], s, float("-inf"))
        now = tl.maximum(top, tl.max(s, axis=1))
        fade, P = tl.exp(top - now), tl.exp(s - now[:, None])
        total = total * fade + tl.sum(P, axis=1)
        y = dot_single(P, values, y * fade[:, None])
        top = now
    place = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + pair
    queries, some = tl.arange(0, R), tl.where(total > 0, total, 1.0)
    store_matrix(found, y / some[:, None], place, r, e, R, E)
    level = tl.where(total > 0, top + tl.log(some), float("-inf"))
    tl.store(levels + place * r + queries, level, mask=queries < r)


@triton.jit
@no_type_check
def _merge(found, levels, y, level, parts, rows, e: tl.constexpr, E: tl.constexpr, B: tl.constexpr):
    """What all parts found, weighted by the sums they divided by."""
    queries, channels = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B), tl.arange(0, E)
    real = (queries < rows)[:, None] & (channels < e)[None, :]
    top = tl.full([B], LEAST, tl.float32)
    for i in range(parts):
        at = i * rows + queries
        top = tl.maximum(top, tl.load(levels + at, mask=queries < rows, other=float("-inf")))
    total, sums = tl.zeros([B], tl.float32), tl.zeros([B, E], tl.float32)
    for i in range(parts):
        at = i * rows + queries
        weight = tl.exp(tl.load(levels + at, mask=queries < rows, other=float("-inf")) - top)
        total += weight
        sums += weight[:, None] * tl.load(found + at[:, None] * e + channels[None, :], mask=real, other=0.0)
    some = tl.where(total > 0, total, 1.0)
    tl.store(y + queries[:, None] * e + channels[None, :], sums / some[:, None], mask=real)
    tl.store(level + queries, tl.where(total > 0, top + tl.log(some), 0.0), mask=queries < rows)


@triton.jit
@no_type_check
def _back(
    dy, dlevel, q, y, level, k, v, mask, dq, dk, dv, heads, n, share, half,
    k_b, k_h, k_t, v_b, v_h, v_t, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t,
    r: tl.constexpr, c: tl.constexpr, e: tl.constexpr, R: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
    T: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    row, head, first, last = part(heads, n, share)
    pair = tl.program_id(0).to(tl.int64)
    k, v = of(k, row, head, k_b, k_h), of(v, row, head, v_b, v_h)
    dk, dv = of(dk, row, head, dk_b, dk_h), of(dv, row, head, dv_b, dv_h)
    if MASKED:
        mask += row.to(tl.int64) * n
    queries, dfew = tl.arange(0, R), tl.zeros([R, C], tl.float32)
    few, rest = halves(load_matrix(q, pair, r, c, R, C), k)  # [R, C]
    exact = load_matrix(dy, pair, r, e, R, E)  # [R, E]
    through = tl.sum(exact * load_matrix(y, pair, r, e, R, E), axis=1)
    through -= tl.load(dlevel + pair * r + queries, mask=queries < r, other=0.0)
    g, rest_g = halves(exact, k)
    for start in range(first, last, T):
        tokens = start + tl.arange(0, T)
        seen = visible(mask, tokens, last, MASKED)
        keys = load(k, tokens, k_t, seen, c, C)  # [T, C]
        values = load(v, tokens, v_t, seen, e, E)  # [T, E]
        single = keys.to(tl.float32)
        s = dot_halves(keys, tl.trans(few), tl.trans(rest))  # [T, R]
        top = tl.load(level + pair * r + queries, mask=queries < r, other=0.0)  # anew, since kept it costs registers
        s -= (tl.sum(single * single, axis=1) * half)[:, None] + top[None, :]
        P = tl.exp(tl.minimum(s, 0.0))  # forth it was rounded too, by another program
        P = tl.where(seen[:, None], P, 0.0)
        ds = P * (dot_halves(values, tl.trans(g), tl.trans(rest_g)) - through[None, :])
        store(dv, single_dot_halves(P, g, rest_g), tokens, dv_t, tokens < last, e, E)
        rounded = ds.to(keys.dtype)
        dfew = dot(tl.trans(rounded), keys, dfew)
        dkeys = dot(rounded, few, single * (tl.sum(ds, axis=1) * (-2 * half))[:, None])
        store(dk, dkeys, tokens, dk_t, tokens < last, c, C)
    store_matrix(dq, dfew, tl.program_id(1).to(tl.int64) * tl.num_programs(0) + pair, r, c, R, C)
