"""Attention by positive random features in Triton: every kernel recomputes the features of its tile of tokens.

With u_s = (v_s, 1), denominators d_t and w_t = (dy_t, -dy_t . y_t) / d_t, for every feature

    forward    M_t = sum_s exp(log phi(k_s)) u_s      (y_t d_t, d_t) = sum_r exp(log phi(q_t) - Q_t - m_t) M_t
    backward   N_s = sum_t exp(log phi(q_t) - Q_t - m_t) w_t      du_s = sum_r exp(log phi(k_s)) N_s
               dlog phi(q_t) = phi(q_t) M_t . w_t      dlog phi(k_s) = phi(k_s) N_s . u_s

where t sees all s, or in the causal form s <= t. There m_t is the running maximum of all log phi(k_s), else 0; and Q_t
keeps the largest exponent of a query at 0. M and N are the same kind of sum, of keys from the beginning and of queries
from the end, and `_sum_part` computes both: a program goes through a part of a row for a block of features, and keeps
their sums relative to the largest exponent so far, of each feature or in the causal form of the block. It stores what
each causal tile starts from. `_merge_parts` adds up parts.

All other programs own a tile of tokens and go through all blocks of features: `_read`, `_backward_queries` and
`_backward_keys`. Causal pairs within a tile are a masked product of their features; all others go through the sums that
the part starts from and those that the tile starts from within its part. Both are rescaled to m at the edge of the
tile, and from there to every token, always downwards.

Logarithms are to base 2. Products of bfloat16 tiles use tensor cores. W comes as two matrices, rounded and remainder,
since an error in a logarithm carries over to phi itself. Sums run in float32 and are rounded when they are written,
denominators never. Products of float32 are not rounded. Deterministic.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, UInt8
from torch import Tensor

from longspan.kernels.favor.reference import log_of_nothing, smallest_sum
from longspan.kernels.favor.shape import Shape
from longspan.kernels.launch import strides
from longspan.kernels.operator import like
from longspan.kernels.tiles import dot, dot_halves, halves_dot, jit, load, of, store, visible

FLOOR = smallest_sum(torch.float32)
MERGED = 16  # features whose sums a program merges
LN2 = tl.constexpr(math.log(2))
HIDDEN = tl.constexpr(log_of_nothing(torch.float32))
MOST = tl.constexpr(-math.log2(FLOOR))  # of exponents, which a division by d may raise above 0

Projection = Float[Tensor, "2 r_padded c_padded"]
Mask = UInt8[Tensor, "b m"] | None
Maxima = Float[Tensor, "_ b h n"]  # Q of each query; in the causal form also m, and the maximum of x . W of each key


class Sums(NamedTuple):
    """S, and for each feature z and the logarithm of what both were divided by."""

    matrix: Float[Tensor, "p b h r e"]
    edges: Float[Tensor, "p b h 2 r"]


class Saved(NamedTuple):
    """What causal parts of rows start from and what tiles start from within their part, or the sums of whole rows."""

    parts: Sums
    tiles: Sums


class Inputs(NamedTuple):
    q: Float[Tensor, "b h n c"]
    k: Float[Tensor, "b h m c"]
    v: Float[Tensor, "b h m e"]
    W: Projection
    mask: Mask


def forward(
    shape: Shape, inputs: Inputs, y: Float[Tensor, "b h n e"], d: Float[Tensor, "b h n"], maxima: Maxima
) -> Saved:
    """Fill in y, its denominators and the maxima; returns M."""
    q, k, v, W, mask = inputs
    # the maximum of x . W of each key, over each block of features
    block_max = k.new_empty(shape.blocks, *k.shape[:3], dtype=torch.float32) if shape.causal else None
    M = _sums(shape, k, v, W, mask, block_max, None, None, keys=True)
    _read[(shape.pairs, shape.tiles(q.shape[2]))](
        *inputs, block_max, *M.parts, *M.tiles, y, d, *_three(maxima), *_sizes(shape, q), FLOOR, *strides(q, k, v, y),
        MASKED=mask is not None, BLOCKS=triton.next_power_of_2(shape.blocks), **shape.constants(),
    )  # fmt: skip
    return M


def backward(
    shape: Shape,
    dy: Float[Tensor, "b h n e"],
    y: Float[Tensor, "b h n e"],
    inputs: Inputs,
    M: Saved,
    d: Float[Tensor, "b h n"],
    maxima: Maxima,
) -> tuple[Float[Tensor, "b h n c"], Float[Tensor, "b h m c"], Float[Tensor, "b h m e"]]:
    q, k, v, W, mask = inputs
    dq, dk, dv = like(q, k, v)
    # the logarithm of what N divides each query by, and -dy . y where d depends on the query
    shift, neg_delta = torch.empty_like(d), torch.empty_like(d)
    _backward_queries[(shape.pairs, shape.tiles(q.shape[2]))](
        dy, y, *inputs, *M.parts, *M.tiles, d, *_three(maxima), dq, shift, neg_delta, *_sizes(shape, q), FLOOR,
        *strides(dy, y, q, k, v, dq), MASKED=mask is not None, **shape.constants(),
    )  # fmt: skip
    N = _sums(shape, q, dy, W, None, None, shift, neg_delta, keys=False)
    _backward_keys[(shape.pairs, shape.tiles(k.shape[2]))](
        dy, *inputs, *N.parts, *N.tiles, *_three(maxima), shift, neg_delta, dk, dv, *_sizes(shape, k),
        *strides(dy, q, k, v, dk, dv), MASKED=mask is not None, **shape.constants(),
    )  # fmt: skip
    return dq, dk, dv


def _sums(
    shape: Shape,
    x: Float[Tensor, "b h n c"],
    u: Float[Tensor, "b h n e"],
    W: Projection,
    mask: Mask,
    block_max: Float[Tensor, "blocks b h n"] | None,
    shift: Float[Tensor, "b h n"] | None,
    neg_delta: Float[Tensor, "b h n"] | None,
    *,
    keys: bool,
) -> Saved:
    """M of keys, or N of queries."""
    n, parts = x.shape[2], shape.parts(x.shape[2])
    own = _room(shape, x, parts, torch.float32)
    saved = Saved(*(_room(shape, x, places, x.dtype) for places in shape.saved(n)))
    _sum_part[(shape.pairs * shape.blocks, parts)](
        x, u, W, mask, block_max, shift, neg_delta, *saved.tiles, *own, *_sizes(shape, x), *strides(x, u),
        KEYS=keys, MASKED=mask is not None, **shape.constants(sums=True),
    )  # fmt: skip
    _merge_parts[(shape.pairs * shape.R // MERGED,)](
        *own, *saved.parts, parts, shape.R, E=shape.E, B=MERGED, KEYS=keys, CAUSAL=shape.causal
    )
    return saved


def _three(maxima: Maxima) -> list[Tensor | None]:
    return [*maxima, *[None] * (3 - len(maxima))]


def _room(shape: Shape, x: Float[Tensor, "b h n c"], places: int, dtype: torch.dtype) -> Sums:
    b, h = x.shape[:2]
    edges = x.new_empty(places, b, h, 2, shape.R, dtype=torch.float32)
    return Sums(x.new_empty(places, b, h, shape.R, shape.E, dtype=dtype), edges)


def _sizes(shape: Shape, x: Float[Tensor, "b h n c"]) -> tuple[int, int, int, int, int, float]:
    """Heads, tokens, features, the same padded, tokens of a part; half the square of the scale of x, in base 2."""
    half = math.log2(math.e) / shape.c**0.5 / 2
    return x.shape[1], x.shape[2], shape.r, shape.R, shape.tokens_per_part(x.shape[2]), half


@jit
def _sum_part(
    x, u, W, mask, key_max, shift, neg_delta, states, state_edges, sums, edges, heads, n, r, R, share, half,
    x_b, x_h, x_t, u_b, u_h, u_t,
    c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, E: tl.constexpr, T: tl.constexpr, B: tl.constexpr,
    CAUSAL: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    blocks = R // B  # those of one row and head are neighbours, since they read the same tokens
    block, pair = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    pairs, row, head = tl.num_programs(0) // blocks, pair // heads, pair % heads
    if MASKED:
        mask += row * n
    columns = block * B + tl.arange(0, B)
    near, rest = _rows(W, columns, R, C)  # [B, C]
    S, z, top = tl.zeros([B, E], tl.float32), tl.zeros([B], tl.float32), tl.full([B], HIDDEN, tl.float32)
    first = tl.program_id(1) * share
    tiles = tl.cdiv(tl.maximum(tl.minimum(share, n - first), 0), T)
    for i in range(tiles):
        start = first + i * T
        if not KEYS:
            start = first + (tiles - 1 - i) * T
        if CAUSAL:
            _store_sums(states, state_edges, (start // T) * pairs + pair, columns, r, R, S, z, top, E)
        tokens = start + tl.arange(0, T)
        there = visible(mask, tokens, n, MASKED)
        own = load(of(x, row, head, x_b, x_h), tokens, x_t, there, c, C)  # [T, C]
        values = load(of(u, row, head, u_b, u_h), tokens, u_t, there, e, E)  # [T, E]
        logs = halves_dot(near, rest, tl.trans(own))  # [B, T]
        if CAUSAL:
            logs = tl.where((columns < r)[:, None], logs, HIDDEN)
        if KEYS:
            if CAUSAL:
                tl.store(key_max + (block * pairs + pair) * n + tokens, tl.max(logs, axis=0), mask=tokens < n)
            by, last = _norm(own, half), tl.full([T], 1.0, tl.float32)
        else:
            by = tl.load(shift + pair * n + tokens, mask=there, other=0.0)
            last = tl.load(neg_delta + pair * n + tokens, mask=there, other=0.0)
        logs = tl.where(there[None, :], logs - by[None, :], HIDDEN)
        new = tl.maximum(top, tl.max(logs, axis=1))
        if CAUSAL:
            new = tl.zeros([B], tl.float32) + tl.max(new, axis=0)
        fade = tl.exp2(top - new)
        # While all tokens are hidden phi is 1: S stays 0, and z fades to 0 with the first visible one.
        phi = tl.exp2(logs - new[:, None]).to(own.dtype)
        S = dot(phi, values, S * fade[:, None])
        z = z * fade + tl.sum(phi.to(tl.float32) * last[None, :], axis=1)
        top = new
    _store_sums(sums, edges, tl.program_id(1) * pairs + pair, columns, r, R, S, z, top, E)


@jit
def _merge_parts(
    sums, edges, found, found_edges, parts, R,
    E: tl.constexpr, B: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    blocks = R // B
    pair, columns = (tl.program_id(0) // blocks).to(tl.int64), (tl.program_id(0) % blocks) * B + tl.arange(0, B)
    pairs = tl.num_programs(0) // blocks
    S, z, top = tl.zeros([B, E], tl.float32), tl.zeros([B], tl.float32), tl.full([B], HIDDEN, tl.float32)
    for i in range(parts):
        part = i
        if not KEYS:
            part = parts - 1 - i
        place = part * pairs + pair
        if CAUSAL:
            _store_sums(found, found_edges, place, columns, R, R, S, z, top, E)
        more_S, more_z, other = _load_sums(sums, edges, place, columns, R, E)
        new = tl.maximum(top, other)
        fade, share = tl.exp2(top - new), tl.exp2(other - new)
        S, z, top = S * fade[:, None] + more_S * share[:, None], z * fade + more_z * share, new
    if not CAUSAL:
        _store_sums(found, found_edges, pair, columns, R, R, S, z, top, E)


@jit
def _read(
    q, k, v, W, mask, block_max, sums, edges, states, state_edges, y, d, query_max, running_max, key_max,
    heads, n, r, R, share, half, floor,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, y_b, y_h, y_t,
    c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, E: tl.constexpr, T: tl.constexpr, B: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    pair, start, part_at, tile_at = _places(share, T, CAUSAL)
    row, head = pair // heads, pair % heads
    if MASKED:
        mask += row * n
    tokens = start + tl.arange(0, T)
    own = load(of(q, row, head, q_b, q_h), tokens, q_t, tokens < n, c, C)  # [T, C]
    top, bottom, largest = tl.zeros([T, E], tl.float32), tl.zeros([T], tl.float32), tl.full([T], HIDDEN, tl.float32)
    if CAUSAL:
        there = visible(mask, tokens, n, MASKED)
        key = load(of(k, row, head, k_b, k_h), tokens, k_t, there, c, C)
        u = load(of(v, row, head, v_b, v_h), tokens, v_t, there, e, E)
        blocks = tl.arange(0, BLOCKS)
        at = (blocks.to(tl.int64) * tl.num_programs(0) + pair)[:, None] * n + tokens[None, :]
        real = (blocks < R // B)[:, None] & (tokens < n)[None, :]
        k_max = tl.max(tl.load(block_max + at, mask=real, other=HIDDEN), axis=0)  # [T]
        a = tl.where(there, k_max - _norm(key, half), HIDDEN)
        of_part = tl.load(edges + part_at * (2 * R) + R + blocks * B, mask=blocks < R // B, other=HIDDEN)
        of_tile = tl.load(state_edges + tile_at * (2 * R) + R + blocks * B, mask=blocks < R // B, other=HIDDEN)
        before = tl.max(tl.maximum(of_part, of_tile), axis=0)  # m at the edge
        seen = tl.arange(0, T)[:, None] >= tl.arange(0, T)[None, :]
        now = tl.maximum(tl.max(tl.where(seen, a[None, :], HIDDEN), axis=1), before)  # m [T]
        products = tl.zeros([T, T], tl.float32)
    for begin in range(0, R, B):
        columns = begin + tl.arange(0, B)
        near, rest = _rows(W, columns, R, C)
        logs = dot_halves(own, tl.trans(near), tl.trans(rest))  # [T, B]
        if CAUSAL:
            logs = tl.where((columns < r)[None, :], logs, HIDDEN)
            S, z = _start_sums(sums, edges, part_at, states, state_edges, tile_at, begin, R, before, E, B)
        else:
            S, z, shift = _load_sums(sums, edges, part_at, columns, R, E)
            logs += shift[None, :]
        new = tl.maximum(largest, tl.max(logs, axis=1))
        fade = tl.exp2(largest - new)
        phi = tl.exp2(logs - new[:, None]).to(own.dtype)
        top = dot(phi, S, top * fade[:, None])
        bottom = bottom * fade + tl.sum(phi.to(tl.float32) * z[None, :], axis=1)
        if CAUSAL:
            of_key = _phi(dot_halves(key, tl.trans(near), tl.trans(rest)) - k_max[:, None], key)
            products = dot(phi, tl.trans(of_key), products * fade[:, None])
        largest = new
    if CAUSAL:
        since = tl.exp2(before - now)
        weights = (products * _fades(a, now)).to(own.dtype)
        top = dot(weights, u, top * since[:, None])
        bottom = bottom * since + tl.sum(weights.to(tl.float32), axis=1)
        tl.store(running_max + pair * n + tokens, now, mask=tokens < n)
        tl.store(key_max + pair * n + tokens, k_max, mask=tokens < n)
    bottom = tl.maximum(bottom, floor)
    store(of(y, row, head, y_b, y_h), top / bottom[:, None], tokens, y_t, tokens < n, e, E)
    tl.store(d + pair * n + tokens, bottom, mask=tokens < n)
    tl.store(query_max + pair * n + tokens, largest, mask=tokens < n)


@jit
def _backward_queries(
    dy, y, q, k, v, W, mask, sums, edges, states, state_edges, d, query_max, running_max, key_max, dq, shift, neg_delta,
    heads, n, r, R, share, half, floor,
    g_b, g_h, g_t, y_b, y_h, y_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, dq_b, dq_h, dq_t,
    c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, E: tl.constexpr, T: tl.constexpr, B: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    pair, start, part_at, tile_at = _places(share, T, CAUSAL)
    row, head = pair // heads, pair % heads
    if MASKED:
        mask += row * n
    tokens = start + tl.arange(0, T)
    own = load(of(q, row, head, q_b, q_h), tokens, q_t, tokens < n, c, C)  # [T, C]
    largest = tl.load(query_max + pair * n + tokens, mask=tokens < n, other=0.0)
    gradient = load(of(dy, row, head, g_b, g_h), tokens, g_t, tokens < n, e, E)  # [T, E]
    output = load(of(y, row, head, y_b, y_h), tokens, y_t, tokens < n, e, E)
    bottom = tl.load(d + pair * n + tokens, mask=tokens < n, other=1.0)
    last = -tl.sum(gradient.to(tl.float32) * output.to(tl.float32), axis=1)
    last = tl.where(bottom > floor, last, 0.0)  # at the floor the denominator is a constant
    tl.store(neg_delta + pair * n + tokens, last, mask=tokens < n)
    most = -tl.log2(bottom)  # of the logarithm of phi / d
    if CAUSAL:
        there = visible(mask, tokens, n, MASKED)
        key = load(of(k, row, head, k_b, k_h), tokens, k_t, there, c, C)
        u = load(of(v, row, head, v_b, v_h), tokens, v_t, there, e, E)
        at = pair * n + tl.minimum(tokens, n - 1)
        k_max, now = tl.load(key_max + at), tl.load(running_max + at)
        a = tl.where(there, k_max - _norm(key, half), HIDDEN)
        before = tl.where(start > 0, tl.load(running_max + pair * n + tl.maximum(start - 1, 0)), HIDDEN)
        of_pairs = dot(gradient, tl.trans(u), tl.zeros([T, T], tl.float32)) + last[:, None]
        of_pairs = (of_pairs * _fades(a, now)).to(own.dtype)  # [T of t, T of s]
        since = tl.exp2(before - now)
        gradient, last = _scale(gradient, since), last * since  # for what came before the tile
        tl.store(shift + pair * n + tokens, largest - most + now, mask=tokens < n)
    else:
        tl.store(shift + pair * n + tokens, largest - most, mask=tokens < n)
    found, total = tl.zeros([T, C], tl.float32), tl.zeros([T], tl.float32)
    for begin in range(0, R, B):
        columns = begin + tl.arange(0, B)
        near, rest = _rows(W, columns, R, C)
        logs = dot_halves(own, tl.trans(near), tl.trans(rest)) - (largest - most)[:, None]  # [T, B]
        if CAUSAL:
            logs = tl.where((columns < r)[None, :], logs, HIDDEN)
            S, z = _start_sums(sums, edges, part_at, states, state_edges, tile_at, begin, R, before, E, B)
        else:
            S, z, of_keys = _load_sums(sums, edges, part_at, columns, R, E)
            logs += of_keys[None, :]
        phi = tl.exp2(tl.minimum(logs, most[:, None]))
        g = dot(gradient, tl.trans(S), tl.zeros([T, B], tl.float32))  # [T, B]
        if CAUSAL:
            of_key = _phi(dot_halves(key, tl.trans(near), tl.trans(rest)) - k_max[:, None], key)
            g = dot(of_pairs, of_key, g)
        g = g * phi + last[:, None] * (phi * z[None, :])
        found = dot(g.to(own.dtype), near, found)
        total += tl.sum(g, axis=1)
    store(of(dq, row, head, dq_b, dq_h), _of_logs(found, total, own, half), tokens, dq_t, tokens < n, c, C)


@jit
def _backward_keys(
    dy, q, k, v, W, mask, sums, edges, states, state_edges, query_max, running_max, key_max, shift, neg_delta, dk, dv,
    heads, n, r, R, share, half,
    g_b, g_h, g_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t,
    c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, E: tl.constexpr, T: tl.constexpr, B: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    pair, start, part_at, tile_at = _places(share, T, CAUSAL)
    row, head = pair // heads, pair % heads
    if MASKED:
        mask += row * n
    tokens = start + tl.arange(0, T)
    there = visible(mask, tokens, n, MASKED)
    own = load(of(k, row, head, k_b, k_h), tokens, k_t, there, c, C)  # [T, C]
    u = load(of(v, row, head, v_b, v_h), tokens, v_t, there, e, E)  # [T, E]
    by, until = _norm(own, half), tl.full([T], 1.0, tl.float32)
    if CAUSAL:
        query = load(of(q, row, head, q_b, q_h), tokens, q_t, tokens < n, c, C)
        at = pair * n + tl.minimum(tokens, n - 1)
        largest = tl.load(query_max + at)
        above = tl.load(shift + at) - largest  # m and the logarithm of d, by which all of w is divided
        last = tl.load(neg_delta + pair * n + tokens, mask=tokens < n, other=0.0)
        gradient = load(of(dy, row, head, g_b, g_h), tokens, g_t, tokens < n, e, E)
        k_max = tl.load(key_max + at)
        a, by = tl.where(there, k_max - by, HIDDEN), k_max
        of_pairs = dot(gradient, tl.trans(u), tl.zeros([T, T], tl.float32)) + last[:, None]
        of_pairs = (of_pairs * _fades(a, above)).to(own.dtype)  # [T of t, T of s]
        after = tl.load(running_max + pair * n + tl.minimum(start + T, n) - 1)  # m at the edge
        until = tl.exp2(tl.minimum(a - after, 0.0))
        u = _scale(u, until)  # for what comes after the tile
        products = tl.zeros([T, T], tl.float32)  # [T of s, T of t]
    found, total, of_values = tl.zeros([T, C], tl.float32), tl.zeros([T], tl.float32), tl.zeros([T, E], tl.float32)
    for begin in range(0, R, B):
        columns = begin + tl.arange(0, B)
        near, rest = _rows(W, columns, R, C)
        logs = dot_halves(own, tl.trans(near), tl.trans(rest)) - by[:, None]  # [T, B]
        if CAUSAL:
            logs = tl.where((columns < r)[None, :], logs, HIDDEN)
            S, z = _start_sums(sums, edges, part_at, states, state_edges, tile_at, begin, R, -after, E, B)
        else:
            S, z, of_queries = _load_sums(sums, edges, part_at, columns, R, E)
            logs += of_queries[None, :]
        phi = _phi(logs, own)
        of_values = dot(phi, S, of_values)
        g = dot(u, tl.trans(S), tl.zeros([T, B], tl.float32))  # [T, B]
        if CAUSAL:
            of_query = _phi(dot_halves(query, tl.trans(near), tl.trans(rest)) - largest[:, None], query)
            g = dot(tl.trans(of_pairs), of_query, g)
            products = dot(phi, tl.trans(of_query), products)
        single = phi.to(tl.float32)
        g = g * single + until[:, None] * (single * z[None, :])
        found = dot(g.to(own.dtype), near, found)
        total += tl.sum(g, axis=1)
    if CAUSAL:  # the transposed fades are computed again: keeping them would cost a square of registers
        seen = tl.arange(0, T)[:, None] <= tl.arange(0, T)[None, :]
        weights = products * tl.exp2(tl.where(seen, tl.minimum(a[:, None] - above[None, :], MOST), HIDDEN))
        of_values = dot(weights.to(own.dtype), gradient, of_values * until[:, None])
    found = tl.where(there[:, None], _of_logs(found, total, own, half), 0.0)
    store(of(dk, row, head, dk_b, dk_h), found, tokens, dk_t, tokens < n, c, C)
    store(of(dv, row, head, dv_b, dv_h), tl.where(there[:, None], of_values, 0.0), tokens, dv_t, tokens < n, e, E)


@jit
def _places(share, T: tl.constexpr, CAUSAL: tl.constexpr):
    """Row and head of this program, the first token of its tile, and the sums that its part and its tile start from."""
    pair, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * T
    part_at, tile_at = pair, pair
    if CAUSAL:
        part_at += (start // share).to(tl.int64) * tl.num_programs(0)
        tile_at += tl.program_id(1).to(tl.int64) * tl.num_programs(0)
    return pair, start, part_at, tile_at


@jit
def _rows(W, columns, R, C: tl.constexpr):
    """Rows of W [B, C], rounded, and the remainder, of which float32 has none."""
    at = columns[:, None] * C + tl.arange(0, C)[None, :]
    near = tl.load(W + at)
    rest = near
    if near.dtype != tl.float32:
        rest = tl.load(W + R * C + at)
    return near, rest


@jit
def _norm(x, half):
    single = x.to(tl.float32)
    return tl.sum(single * single, axis=1) * half


@jit
def _phi(logs, like):
    """Features [T, B]; none is above 1, although their maximum was rounded by another kernel."""
    return tl.exp2(tl.minimum(logs, 0.0)).to(like.dtype)


@jit
def _scale(x, by):
    return (x.to(tl.float32) * by[:, None]).to(x.dtype)


@jit
def _fades(a, now):
    """How much of each key of a tile is left for each query [T of t, T of s]; 0 for one that is hidden.

    Maxima come from several kernels, which may round huge ones differently, so the exponent is bounded.
    """
    seen = tl.arange(0, now.shape[0])[:, None] >= tl.arange(0, a.shape[0])[None, :]
    return tl.exp2(tl.where(seen, tl.minimum(a[None, :] - now[:, None], MOST), HIDDEN))


@jit
def _of_logs(found, total, x, half):
    """The gradient of x, from that of its logarithms times W, and their sum."""
    return (found - x.to(tl.float32) * (total * (2 * half))[:, None]) * LN2


@jit
def _start_sums(
    sums, edges, part_at, states, state_edges, tile_at, begin, R, largest, E: tl.constexpr, B: tl.constexpr
):
    """S [B, E] and z [B] that a causal tile starts from, relative to a maximum that nothing in them exceeds."""
    columns = begin + tl.arange(0, B)
    S, z, _ = _load_sums(sums, edges, part_at, columns, R, E)
    near_S, near_z, _ = _load_sums(states, state_edges, tile_at, columns, R, E)
    fade = tl.exp2(tl.minimum(tl.load(edges + part_at * (2 * R) + R + begin) - largest, MOST))
    near_fade = tl.exp2(tl.minimum(tl.load(state_edges + tile_at * (2 * R) + R + begin) - largest, MOST))
    both = S.to(tl.float32) * fade + near_S.to(tl.float32) * near_fade
    return both.to(S.dtype), z * fade + near_z * near_fade


@jit
def _load_sums(sums, edges, place, columns, R, E: tl.constexpr):
    sums, edges = sums + place * (E * R), edges + place * (2 * R)
    S = tl.load(sums + columns[:, None] * E + tl.arange(0, E)[None, :])
    return S, tl.load(edges + columns), tl.load(edges + R + columns)


@jit
def _store_sums(sums, edges, place, columns, r, R, S, z, top, E: tl.constexpr):
    """Features from r on are padding: their maximum is the lowest, so that they weigh nothing."""
    sums, edges = sums + place * (E * R), edges + place * (2 * R)
    tl.store(sums + columns[:, None] * E + tl.arange(0, E)[None, :], S.to(sums.dtype.element_ty))
    tl.store(edges + columns, z)
    tl.store(edges + R + columns, tl.where(columns < r, top, HIDDEN))
