"""Sums over buckets in Triton: a program walks along tokens that are sorted by code, T at a time.

Some tokens give and some receive; in the order of a hash each receives from those before it that have its code:

    y_i = sum_j (a_i . b_j) v_j      z_i = sum_j b_j

Pairs are formed only among T tokens. Earlier tokens matter only if they have the code of the first: they are carried as
sums of b_j v_j^T [R, E] and of b_j [R], which restart at each new code. A row is cut into parts of `share` positions. A
first kernel computes the sums of the last bucket of each part; a second one starts from those of the parts before its
own, as far back as its first bucket reaches, and walks. There are no more parts than fill a GPU, so that this too is
linear.

Hashes are launched one after another and add to each other's results in single precision. Each token receives once in
every hash, so that no two programs add to the same place at a time. BACKWARD walks from the end, keys and queries
swapped: keys receive what queries after them give. All tensors are contiguous [b h n c]. Items are numbered in their
order before sorting: key 0, query 0, key 1, query 1... if CAUSAL, else all m keys and then all queries.
"""

from typing import no_type_check  # Triton functions are not Python functions, nor are their annotations types

import triton
import triton.language as tl

from longspan.kernels.tiles import dot, dot_sums, load, load_matrix, store, store_matrix


@triton.jit
@no_type_check
def ends(
    b, v, order, codes, matrices, vectors, items, m, givers, share, hashes, turn,
    r: tl.constexpr, e: tl.constexpr, R: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
    CAUSAL: tl.constexpr, BACKWARD: tl.constexpr, PRODUCTS: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """The sums of the last bucket of each part."""
    pair, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    order, codes = order + (pair * hashes + turn) * items, codes + (pair * hashes + turn) * items
    b, v = b + pair * givers * r, v + pair * givers * e
    first, end = part * share, tl.minimum((part + 1) * share, items)
    own = _code(codes, end - 1, items, BACKWARD)
    matrix, vector = tl.zeros([R, E], tl.float32), tl.zeros([R], tl.float32)
    while end > first:
        at = end - T + tl.arange(0, T)
        token, code, gives, _ = _tokens(order, codes, at, at >= first, items, m, CAUSAL, BACKWARD)
        gives = gives & (code == own)
        given = load(b, token, r, gives, r, R)  # [T, R]
        if PRODUCTS:
            matrix = dot(tl.trans(given), load(v, token, e, gives, e, E), matrix)
        if PLAIN:
            vector += tl.sum(given.to(tl.float32), axis=0)
        end -= T
        end = tl.where(_code(codes, tl.maximum(end, first), items, BACKWARD) == own, end, first)
    place = pair * tl.num_programs(1) + part
    if PRODUCTS:
        store_matrix(matrices, matrix, place, r, e, R, E)
    if PLAIN:
        channels = tl.arange(0, R)
        tl.store(vectors + place * r + channels, vector, mask=channels < r)


@triton.jit
@no_type_check
def sums(
    a, b, v, order, codes, matrices, vectors, y, z, items, m, receivers, givers, share, hashes, turn,
    r: tl.constexpr, e: tl.constexpr, R: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
    CAUSAL: tl.constexpr, BACKWARD: tl.constexpr, PRODUCTS: tl.constexpr, PLAIN: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    pair, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    order, codes = order + (pair * hashes + turn) * items, codes + (pair * hashes + turn) * items
    b, v = b + pair * givers * r, v + pair * givers * e
    a, y, z = a + pair * receivers * r, y + pair * receivers * e, z + pair * receivers * r
    first, end = part * share, tl.minimum((part + 1) * share, items)
    channels = tl.arange(0, R)
    matrix, vector = tl.zeros([R, E], tl.float32), tl.zeros([R], tl.float32)
    carried = _code(codes, first, items, BACKWARD)
    earlier = part
    while earlier > 0:  # parts that end with this code, until one holds another code too
        if _code(codes, earlier * share - 1, items, BACKWARD) == carried:
            place = pair * tl.num_programs(1) + earlier - 1
            if PRODUCTS:
                matrix += load_matrix(matrices, place, r, e, R, E)
            if PLAIN:
                vector += tl.load(vectors + place * r + channels, mask=channels < r, other=0.0)
        earlier -= 1
        earlier = tl.where(_code(codes, earlier * share, items, BACKWARD) == carried, earlier, 0)
    for start in range(first, end, T):
        at = start + tl.arange(0, T)
        token, code, gives, receives = _tokens(order, codes, at, at < end, items, m, CAUSAL, BACKWARD)
        given = load(b, token, r, gives, r, R)  # [T, R]
        pairs = (code[:, None] == code[None, :]) & (at[:, None] > at[None, :])
        takes = code == carried
        last = _code(codes, tl.minimum(start + T, end) - 1, items, BACKWARD)
        remains = gives & (code == last)
        kept = tl.where(remains[:, None], given, tl.zeros_like(given))
        if PRODUCTS:
            wanted = load(a, token, r, receives, r, R)  # [T, R]
            values = load(v, token, e, gives, e, E)  # [T, E]
            weights = dot(wanted, tl.trans(given), tl.zeros([T, T], tl.float32))
            weights = tl.where(pairs, weights, 0.0).to(values.dtype)
            found = dot_sums(tl.where(takes[:, None], wanted, tl.zeros_like(wanted)), matrix)
            found = dot(weights, values, found)
            if not FIRST:
                found += load(y, token, e, receives, e, E)
            store(y, found, token, e, receives, e, E)
            matrix = dot(tl.trans(kept), values, tl.where(last == carried, matrix, 0.0))
        if PLAIN:
            found = tl.where(takes[:, None], vector[None, :], 0.0)
            found = dot(tl.where(pairs, 1.0, 0.0).to(given.dtype), given, found)
            if not FIRST:
                found += load(z, token, r, receives, r, R)
            store(z, found, token, r, receives, r, R)
            vector = tl.where(last == carried, vector, 0.0) + tl.sum(kept.to(tl.float32), axis=0)
        carried = last


@triton.jit
@no_type_check
def _place(at, items, BACKWARD: tl.constexpr):
    """Where the tokens of a walk lie in the order."""
    if BACKWARD:
        return items - 1 - at
    return at


@triton.jit
@no_type_check
def _code(codes, at, items, BACKWARD: tl.constexpr):
    return tl.load(codes + _place(at, items, BACKWARD)).to(tl.int32)


@triton.jit
@no_type_check
def _tokens(order, codes, at, there, items, m, CAUSAL: tl.constexpr, BACKWARD: tl.constexpr):
    """T tokens, their codes, and whether they give or receive; missing ones do neither."""
    place = _place(at, items, BACKWARD)
    item = tl.load(order + place, mask=there, other=0)
    code = tl.load(codes + place, mask=there, other=-1).to(tl.int32)
    if CAUSAL:
        query, token = item % 2 == 1, item // 2
    else:
        query = item >= m
        token = tl.where(query, item - m, item)
    if BACKWARD:
        return token, code, there & query, there & (query == 0)
    return token, code, there & (query == 0), there & query
