"""LSH attention in Triton: tokens are read in place, in the order of their buckets, and never copied.

A program owns T positions of a round, tokens that follow one another once sorted by bucket, and visits S others at a
time, no farther away than the window and their own buckets reach. With the key k_j = f_j z_j, f_j = scale r_j and
r_j = (|z_j|^2 + c / 10^6)^(-1/2), and lse_i over all rounds:

    forward    p_ij = exp(f_j z_i . z_j - lse_i)      y_i = sum_j p_ij v_j
    backward   delta_i = dy_i . y_i      ds_ij = p_ij (dy_i . v_j - delta_i)      dv_j = sum_i p_ij dy_i
               dz_i = sum_j (f_j ds_ij + f_i ds_ji) z_j - f_i r_i^2 (sum_j ds_ji z_i . z_j) z_i

The forward pass of a round continues the softmax with the lse and the mean that earlier rounds have left for its
tokens. In the backward pass the gradients of both tokens of a pair come from one product z_i . z_j, and since each
program writes only its own tokens, it is deterministic. Rounds are launched one after another and add to each other's
results in single precision. All tensors are [b n h c].

A program of the hash has some rows, each one hash of one token, with all their directions: the largest of [u, -u] is
the largest |u|; of the places where u or -u reaches it, the first is taken.
"""

from typing import no_type_check  # Triton functions are not Python functions, nor are their annotations types

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.launch import next_power_of_2
from longspan.kernels.tiles import dot, load, online_softmax, store

LOG2E = tl.constexpr(1.4426950408889634)
HASHED = 4_096  # elements of a program of the hash
# Positions of a program, others it visits at a time, warps and stages, by bytes per element and whether a width is
# above 64. Larger tiles no longer fit the registers.
FORWARD = {(2, False): (64, 32, 4, 2), (2, True): (64, 32, 4, 2), (4, False): (32, 32, 8, 2), (4, True): (32, 16, 8, 2)}
BACKWARD = {
    (2, False): (64, 32, 4, 2),
    (2, True): (32, 32, 4, 2),
    (4, False): (32, 16, 8, 1),
    (4, True): (16, 16, 8, 1),
}


def launch(
    tiles: dict[tuple[int, bool], tuple[int, int, int, int]],
    z: Float[Tensor, "b n h c"],
    v: Float[Tensor, "b n h e"],
    reach: int,
) -> dict[str, int]:
    """Widths, the powers of two they are padded to, the tiles that a program may have to look at, warps and stages."""
    c, e = z.shape[3], v.shape[3]
    T, S, warps, stages = tiles[z.element_size(), max(c, e) > 64]
    sizes = {"c": c, "e": e, "C": next_power_of_2(c), "E": next_power_of_2(e), "T": T, "S": S}
    return sizes | {"TILES": next_power_of_2(-(-(T + reach) // S) + 1), "num_warps": warps, "num_stages": stages}


@triton.jit
@no_type_check
def forward(
    z, v, order, bucket, mean, lse, y, heads, n, rounds, turn, left, right, scale,
    c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, E: tl.constexpr, T: tl.constexpr, S: tl.constexpr,
    TILES: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    pair, first = _tile(n, T)
    order, bucket = _of_round(order, pair, n, rounds, turn), _of_round(bucket, pair, n, rounds, turn)
    lse += pair * n
    z, v = _of(z, pair, heads, n, c), _of(v, pair, heads, n, e)
    mean, y = _of(mean, pair, heads, n, e), _of(y, pair, heads, n, e)
    place, token, own = _places(order, bucket, first, n, T)
    real = place < n
    query = load(z, token, heads * c, real, c, C)  # [T, C]
    top, total = tl.full([T], float("-inf"), tl.float32), tl.zeros([T], tl.float32)
    sums = tl.zeros([T, E], tl.float32)
    if not FIRST:
        top = tl.load(lse + token, mask=real, other=float("-inf")) * LOG2E
        total = tl.where(top > float("-inf"), 1.0, 0.0)
        sums = load(mean, token, heads * e, real, e, E)
    begin, end = _reach(bucket, first, n, left, right, T, S, TILES)
    for start in range(begin, end, S):
        there, others, their = _places(order, bucket, start, n, S)
        keys = load(z, others, heads * c, there < n, c, C)  # [S, C]
        values = load(v, others, heads * e, there < n, e, E)  # [S, E]
        factors = LOG2E * scale * _inverse_norm(keys, c)
        scores = dot(query, tl.trans(keys), tl.zeros([T, S], tl.float32)) * factors[None, :]
        lag = there[None, :] - place[:, None]
        visible = (own[:, None] == their[None, :]) & (lag >= -left) & (lag <= right) & (lag != 0)
        scores = tl.where(visible, scores, float("-inf"))
        weights, top, total, sums = online_softmax(scores, top, total, sums)
        sums = dot(weights.to(values.dtype), values, sums)
    alone = total == 0
    total = tl.where(alone, 1.0, total)
    tl.store(lse + token, (top + tl.log2(total)) / LOG2E, mask=real)
    result = sums / total[:, None]
    if LAST:
        result += load(v, token, heads * e, real & alone, e, E).to(tl.float32)  # 0 except for those that saw no other
        store(y, result, token, heads * e, real, e, E)
    else:
        store(mean, result, token, heads * e, real, e, E)


@triton.jit
@no_type_check
def delta(dy, y, delta, heads, n, e: tl.constexpr, E: tl.constexpr, T: tl.constexpr):
    """dy_i . y_i."""
    pair, first = _tile(n, T)
    token = (first + tl.arange(0, T)).to(tl.int64)
    one = load(_of(dy, pair, heads, n, e), token, heads * e, token < n, e, E).to(tl.float32)
    other = load(_of(y, pair, heads, n, e), token, heads * e, token < n, e, E).to(tl.float32)
    tl.store(delta + pair * n + token, tl.sum(one * other, axis=1), mask=token < n)


@triton.jit
@no_type_check
def backward(
    dy, delta, lse, z, v, order, bucket, z_sums, v_sums, dz, dv, heads, n, rounds, turn, left, right, scale,
    c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, E: tl.constexpr, T: tl.constexpr, S: tl.constexpr,
    TILES: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    pair, first = _tile(n, T)
    order, bucket = _of_round(order, pair, n, rounds, turn), _of_round(bucket, pair, n, rounds, turn)
    lse, delta = lse + pair * n, delta + pair * n
    z, v, dy = _of(z, pair, heads, n, c), _of(v, pair, heads, n, e), _of(dy, pair, heads, n, e)
    z_sums, dz = _of(z_sums, pair, heads, n, c), _of(dz, pair, heads, n, c)
    v_sums, dv = _of(v_sums, pair, heads, n, e), _of(dv, pair, heads, n, e)
    place, token, own = _places(order, bucket, first, n, T)
    real = place < n
    vector = load(z, token, heads * c, real, c, C)  # [T, C], a query and a key
    value, gradient = load(v, token, heads * e, real, e, E), load(dy, token, heads * e, real, e, E)  # [T, E]
    own_lse, own_delta = _load_both(lse, delta, token, real)
    inverse = _inverse_norm(vector, c)
    factor = scale * inverse
    z_grad, v_grad, radial = tl.zeros([T, C], tl.float32), tl.zeros([T, E], tl.float32), tl.zeros([T], tl.float32)
    if not FIRST:
        z_grad, v_grad = load(z_sums, token, heads * c, real, c, C), load(v_sums, token, heads * e, real, e, E)
    reach = tl.maximum(left, right)
    begin, end = _reach(bucket, first, n, reach, reach, T, S, TILES)
    for start in range(begin, end, S):
        there, others, their = _places(order, bucket, start, n, S)
        vectors = load(z, others, heads * c, there < n, c, C)  # [S, C]
        values = load(v, others, heads * e, there < n, e, E)  # [S, E]
        gradients = load(dy, others, heads * e, there < n, e, E)  # [S, E]
        their_lse, their_delta = _load_both(lse, delta, others, there < n)
        factors = scale * _inverse_norm(vectors, c)
        product = dot(vector, tl.trans(vectors), tl.zeros([T, S], tl.float32))
        lag = there[None, :] - place[:, None]
        same = (own[:, None] == their[None, :]) & (lag != 0)
        sees, seen = same & (lag >= -left) & (lag <= right), same & (lag >= -right) & (lag <= left)
        p = tl.where(sees, tl.exp(product * factors[None, :] - own_lse[:, None]), 0.0)
        ds = p * (dot(gradient, tl.trans(values), tl.zeros([T, S], tl.float32)) - own_delta[:, None])
        p = tl.where(seen, tl.exp(product * factor[:, None] - their_lse[None, :]), 0.0)  # now own tokens as keys
        v_grad = dot(p.to(gradients.dtype), gradients, v_grad)
        p *= dot(value, tl.trans(gradients), tl.zeros([T, S], tl.float32)) - their_delta[None, :]
        radial += tl.sum(p * product, axis=1)
        z_grad = dot((ds * factors[None, :] + p * factor[:, None]).to(vectors.dtype), vectors, z_grad)
    z_grad -= (factor * inverse * inverse * radial)[:, None] * vector.to(tl.float32)
    if LAST:
        alone = own_lse == float("-inf")
        v_grad += load(dy, token, heads * e, real & alone, e, E).to(tl.float32)  # 0 except for those that saw no other
        store(dz, z_grad, token, heads * c, real, c, C)
        store(dv, v_grad, token, heads * e, real, e, E)
    else:
        store(z_sums, z_grad, token, heads * c, real, c, C)
        store(v_sums, v_grad, token, heads * e, real, e, E)


@triton.jit
@no_type_check
def _tile(n, T: tl.constexpr):
    """The pair of a row and a head, and the first position of this program: pair after pair, for the cache."""
    tiles = tl.cdiv(n, T)
    return (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles * T


@triton.jit
@no_type_check
def _of_round(x, pair, n, rounds, turn):
    return x + (pair * rounds + turn) * n


@triton.jit
@no_type_check
def _of(x, pair, heads, n, c: tl.constexpr):
    """Where the tokens of a row and head begin."""
    return x + (pair // heads * n * heads + pair % heads) * c


@triton.jit
@no_type_check
def _places(order, bucket, first, n, T: tl.constexpr):
    """T positions, the tokens at them and their buckets; arbitrary beyond the end."""
    place = first + tl.arange(0, T)
    token = tl.load(order + place, mask=place < n, other=0).to(tl.int64)
    return place, token, tl.load(bucket + place, mask=place < n, other=-1)


@triton.jit
@no_type_check
def _reach(bucket, first, n, before, after, T: tl.constexpr, S: tl.constexpr, TILES: tl.constexpr):
    """The range of positions in the window whose tokens are in a bucket of this program's tokens."""
    begin, end = tl.maximum(first - before, 0) // S * S, tl.minimum(first + T + after, n)
    starts = begin + tl.arange(0, TILES) * S
    lowest, highest = tl.load(bucket + first), tl.load(bucket + tl.minimum(first + T, n) - 1)
    below = tl.load(bucket + tl.minimum(starts + S, n) - 1) < lowest
    within = (starts < end) & (tl.load(bucket + tl.minimum(starts, n - 1)) <= highest)
    end = tl.minimum(end, begin + tl.sum(within.to(tl.int32), axis=0) * S)
    return begin + tl.sum(below.to(tl.int32), axis=0) * S, end


@triton.jit
@no_type_check
def _load_both(lse, delta, token, real):
    return tl.load(lse + token, mask=real, other=0.0), tl.load(delta + token, mask=real, other=0.0)


@triton.jit
@no_type_check
def _inverse_norm(rows, c: tl.constexpr):
    """One over the norm of each row, finite where it vanishes."""
    single = rows.to(tl.float32)
    return tl.rsqrt(tl.sum(single * single, axis=1) + 1e-6 * c)


def hashed_rows(half: int) -> tuple[int, int]:
    """How many rows a program has, and how many directions, padded to a power of two."""
    padded = 1 << (half - 1).bit_length()
    return max(1, HASHED // padded), padded


@triton.jit
@no_type_check
def cross_polytope_hash(
    u, offset, found, rows, m, half: tl.constexpr, one: tl.constexpr, other: tl.constexpr,
    T: tl.constexpr, H: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0).to(tl.int64) * T + tl.arange(0, T), tl.arange(0, H)
    real = (row < rows)[:, None] & (column < half)[None, :]
    total = tl.load(u + (row * half)[:, None] + column[None, :], mask=real, other=0.0)  # [T, H]
    if OFFSET:
        total += tl.load(offset + (row % m * half)[:, None] + column[None, :], mask=real, other=0.0)
    bucket = _first_of_largest(total, column, 0, one)
    if other:
        bucket = other * bucket + _first_of_largest(total, column, one // 2, other)
    tl.store(found + row, bucket.to(tl.int64), mask=row < rows)


@triton.jit
@no_type_check
def _first_of_largest(total, column, begin: tl.constexpr, factor: tl.constexpr):
    """argmax [u, -u] of the directions from `begin` on [T]."""
    index, opposites = column - begin, factor // 2
    inside = ((index >= 0) & (index < opposites))[None, :]
    largest = tl.max(tl.where(inside, tl.abs(total), -1.0), axis=1)[:, None]
    place = tl.where(-total == largest, index[None, :] + opposites, factor - 1)  # the last where u is NaN
    place = tl.where(total == largest, index[None, :], place)
    return tl.min(tl.where(inside, place, factor - 1), axis=1)
