"""Attention over a window and extra keys in Triton: every query sees two intervals of keys.

With s_ij = q_i . k_j / (sqrt(c) ln 2), p_ij = 2^(s_ij - lse_i), and lse_i the log-sum-exp of the row, all to base 2:

    forward     y_i = sum_j p_ij v_j, by the online softmax
    backward    ds_ij = p_ij (dy_i . v_j - delta_i)      delta_i = dy_i . y_i
                dq_i = sum_j ds_ij k_j      dk_j = sum_i ds_ij q_i      dv_j = sum_i p_ij dy_i

The intervals of neighbouring queries nearly coincide, so a tile of queries masks individual pairs only at the ends of
its range of keys. A program owns a tile of queries, or for dk and dv a tile of keys and all queries that see it. Where
there are few extra keys, several programs share the queries of one tile, and their sums are added in order.
"""

from typing import Any, no_type_check  # Triton functions are not Python functions, nor are their annotations types

import torch
import triton
import triton.language as tl
from jaxtyping import Float, UInt8
from torch import Tensor

from longspan.kernels.launch import Shape, ceil, empty_like, next_power_of_2, strides
from longspan.kernels.operator import like
from longspan.kernels.tiles import dot, load, of, online_softmax, store, visible

# The tile a program owns, the tile it visits at a time, warps and stages, by bytes per element and whether heads are
# wider than 64.
FORWARD = {
    (2, False): (64, 64, 4, 3), (2, True): (128, 64, 8, 2), (4, False): (32, 32, 4, 2), (4, True): (32, 16, 8, 2)
}  # fmt: skip
BACKWARD = {
    (2, False): (64, 64, 4, 2), (2, True): (64, 64, 8, 2), (4, False): (32, 16, 4, 2), (4, True): (32, 16, 8, 2)
}  # fmt: skip
LOG2_E = 1.4426950408889634

Window = tuple[int, int, int, int, int]  # step, left, right, chunk or 0, rank


Tensors = tuple[
    Float[Tensor, "b h n c"],
    Float[Tensor, "b h n c"],
    Float[Tensor, "b h n c"],
    Float[Tensor, "b h f c"],
    Float[Tensor, "b h f c"],
]  # q, k, v, extra_k, extra_v


def forward(
    tensors: Tensors, mask: UInt8[Tensor, "b n"] | None, window: Window
) -> tuple[Float[Tensor, "b h n c"], Float[Tensor, "b h n"]]:
    q, f = tensors[0], tensors[3].shape[2]
    b, h, n, c = q.shape
    y, lse = empty_like(q, c, q.dtype), q.new_empty(b, h, n, dtype=torch.float32)
    M, N, how = launch(FORWARD, q, window)
    R = _owned(M, window[1] + window[2], window)
    _forward[(ceil(n, R), b * h)](
        *tensors, mask, y, lse, h, n, f, LOG2_E / c**0.5, *strides(*tensors, y),
        M=M, N=N, F=_extra_tile(N, f), R=R, MASKED=mask is not None, **how,
    )  # fmt: skip
    return y, lse


def backward(
    dy: Float[Tensor, "b h n c"],
    y: Float[Tensor, "b h n c"],
    lse: Float[Tensor, "b h n"],
    tensors: Tensors,
    mask: UInt8[Tensor, "b n"] | None,
    window: Window,
) -> Tensors:
    """The gradients of q, k, v, extra_k and extra_v."""
    q, k, v, extra_k, extra_v = tensors
    (b, h, n, c), f, (step, left, right, *_) = q.shape, extra_k.shape[2], window
    dq, dk, dv = like(q, k, v)
    delta, (own, visited, how) = torch.empty_like(lse), launch(BACKWARD, q, window)
    F, scales, masked = _extra_tile(own, f), (LOG2_E / c**0.5, c**-0.5), mask is not None
    R = _owned(own, left + right, window)
    _backward_queries[(ceil(n, R), b * h)](
        dy, y, lse, delta, *tensors, mask, dq, h, n, f, *scales, *strides(dy, y, *tensors, dq),
        M=own, N=visited, F=_extra_tile(visited, f), R=R, MASKED=masked, **how,
    )  # fmt: skip
    R = _owned(own, (ceil(left, step) + ceil(right, step)) * step, window)
    _backward_window[(ceil(n, R), b * h)](
        dy, lse, delta, q, k, v, mask, dk, dv, h, n, *scales, *strides(dy, q, k, v, dk, dv),
        M=visited, N=own, R=R, MASKED=masked, **how,
    )  # fmt: skip
    if not f:
        return dq, dk, dv, extra_k.new_empty(extra_k.shape), extra_v.new_empty(extra_v.shape)
    shape = Shape(ceil(f, F) * b * h)
    parts = shape.parts(n)
    d_extra_k, d_extra_v = (q.new_empty(parts, b, h, f, c, dtype=torch.float32) for _ in range(2))
    _backward_extra[(parts, ceil(f, F), b * h)](
        dy, lse, delta, q, extra_k, extra_v, d_extra_k, d_extra_v, h, n, f, shape.tokens_per_part(n), *scales,
        *strides(dy, q, extra_k, extra_v), M=visited, F=F, **how,
    )  # fmt: skip
    return dq, dk, dv, d_extra_k.sum(dim=0).to(extra_k.dtype), d_extra_v.sum(dim=0).to(extra_v.dtype)


def launch(tiles: dict, q: Float[Tensor, "b h n c"], window: Window) -> tuple[int, int, dict[str, Any]]:
    """The tile of a program, the tiles it visits, and its other compile-time constants."""
    c = q.shape[3]
    own, visited, warps, stages = tiles[q.element_size(), c > 64]
    how = dict(zip(("STEP", "LEFT", "RIGHT", "CHUNK", "RANK"), window, strict=True))
    return own, visited, how | {"c": c, "C": next_power_of_2(c), "num_warps": warps, "num_stages": stages}


def _owned(tile: int, beyond: int, window: Window) -> int:
    """How much of its tile a program takes: somewhat less where it then visits one tile instead of two."""
    fewer = (tile - beyond) // window[0] * window[0]
    return fewer if 2 * fewer >= tile else tile


def _extra_tile(tile: int, extra: int) -> int:
    return min(tile, next_power_of_2(max(extra, 1)))


@triton.jit
@no_type_check
def _forward(
    q, k, v, extra_k, extra_v, mask, y, lse, heads, n, f, scale,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, ek_b, ek_h, ek_t, ev_b, ev_h, ev_t, y_b, y_h, y_t,
    c: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr, F: tl.constexpr, R: tl.constexpr,
    STEP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CHUNK: tl.constexpr, RANK: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(1).to(tl.int64)
    row, head = pair // heads, pair % heads
    # programs with the most extra keys start first
    first, rows, there = _own(tl.num_programs(0) - 1 - tl.program_id(0), n, R, M)
    query = load(of(q, row, head, q_b, q_h), rows, q_t, there, c, C)  # [M, C]
    k, v, mask = of(k, row, head, k_b, k_h), of(v, row, head, v_b, v_h), mask + row * n if MASKED else mask
    extra_k, extra_v = of(extra_k, row, head, ek_b, ek_h), of(extra_v, row, head, ev_b, ev_h)
    sums, top, total = tl.zeros([M, C], tl.float32), tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32)

    low, high = _extra(rows, f, CHUNK, RANK)
    whole, end = _extra_range(first, n, f, R, F, CHUNK, RANK)
    sums, top, total = _attend(
        sums, top, total, query, extra_k, extra_v, mask, ek_t, ev_t, 0, 0, whole, end, low, high, f, scale, c, C, F,
        False, False,
    )  # fmt: skip
    low, high = _near(rows, n, STEP, LEFT, RIGHT)
    begin, whole, broken, end = _near_range(first, n, R, N, STEP, LEFT, RIGHT, MASKED)
    sums, top, total = _attend(
        sums, top, total, query, k, v, mask, k_t, v_t, begin, whole, broken, end, low, high, n, scale, c, C, N,
        True, MASKED,
    )  # fmt: skip
    total = tl.where(total > 0, total, 1.0)
    store(of(y, row, head, y_b, y_h), sums / total[:, None], rows, y_t, there, c, C)
    tl.store(lse + pair * n + rows, top + tl.log2(total), mask=there)


@triton.jit
@no_type_check
def _attend(
    sums, top, total, query, k, v, mask, k_t, v_t, begin, whole, broken, end, low, high, n, scale,
    c: tl.constexpr, C: tl.constexpr, N: tl.constexpr, RISES: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The keys from `begin` to `end`; those from `whole` to `broken` are seen by every query of the tile."""
    if RISES:
        sums, top, total = _attend_range(
            sums, top, total, query, k, v, mask, k_t, v_t, begin, tl.minimum(whole, end), low, high, n, scale, c, C, N,
            True, MASKED,
        )  # fmt: skip
    sums, top, total = _attend_range(
        sums, top, total, query, k, v, mask, k_t, v_t, whole, broken, low, high, n, scale, c, C, N, False, False
    )
    return _attend_range(
        sums, top, total, query, k, v, mask, k_t, v_t, broken, end, low, high, n, scale, c, C, N, True, MASKED
    )


@triton.jit
@no_type_check
def _attend_range(
    sums, top, total, query, k, v, mask, k_t, v_t, begin, end, low, high, n, scale,
    c: tl.constexpr, C: tl.constexpr, N: tl.constexpr, PAIRWISE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The keys from `begin` to `end`; if PAIRWISE, each query sees its own interval of them."""
    for start in range(begin, end, N):
        places = start + tl.arange(0, N)
        there = places < n
        s = dot(query, tl.trans(load(k, places, k_t, there, c, C)), tl.zeros([query.shape[0], N], tl.float32)) * scale
        if PAIRWISE:
            s = tl.where(_seen(places, low, high, mask, n, MASKED), s, float("-inf"))
        p, top, total, sums = online_softmax(s, top, total, sums)
        values = load(v, places, v_t, there, c, C)
        sums = dot(p.to(values.dtype), values, sums)
    return sums, top, total


@triton.jit
@no_type_check
def _backward_queries(
    dy, y, lse, delta, q, k, v, extra_k, extra_v, mask, dq, heads, n, f, scale, root,
    dy_b, dy_h, dy_t, y_b, y_h, y_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, ek_b, ek_h, ek_t, ev_b, ev_h, ev_t,
    dq_b, dq_h, dq_t,
    c: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr, F: tl.constexpr, R: tl.constexpr,
    STEP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CHUNK: tl.constexpr, RANK: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """dq and delta."""
    pair = tl.program_id(1).to(tl.int64)
    row, head = pair // heads, pair % heads
    first, rows, there = _own(tl.num_programs(0) - 1 - tl.program_id(0), n, R, M)
    query = load(of(q, row, head, q_b, q_h), rows, q_t, there, c, C)  # [M, C]
    grad = load(of(dy, row, head, dy_b, dy_h), rows, dy_t, there, c, C)
    output = load(of(y, row, head, y_b, y_h), rows, y_t, there, c, C)
    d = tl.sum(grad.to(tl.float32) * output.to(tl.float32), axis=1)  # [M]
    tl.store(delta + pair * n + rows, d, mask=there)
    l = tl.load(lse + pair * n + rows, mask=there, other=float("inf"))  # noqa: E741
    k, v, mask = of(k, row, head, k_b, k_h), of(v, row, head, v_b, v_h), mask + row * n if MASKED else mask
    extra_k, extra_v = of(extra_k, row, head, ek_b, ek_h), of(extra_v, row, head, ev_b, ev_h)
    sums = tl.zeros([M, C], tl.float32)

    low, high = _extra(rows, f, CHUNK, RANK)
    whole, end = _extra_range(first, n, f, R, F, CHUNK, RANK)
    sums = _differentiate(
        sums, query, grad, l, d, extra_k, extra_v, mask, ek_t, ev_t, 0, 0, whole, end, low, high, f, scale, c, C, F,
        False, False,
    )  # fmt: skip
    low, high = _near(rows, n, STEP, LEFT, RIGHT)
    begin, whole, broken, end = _near_range(first, n, R, N, STEP, LEFT, RIGHT, MASKED)
    sums = _differentiate(
        sums, query, grad, l, d, k, v, mask, k_t, v_t, begin, whole, broken, end, low, high, n, scale, c, C, N,
        True, MASKED,
    )  # fmt: skip
    store(of(dq, row, head, dq_b, dq_h), sums * root, rows, dq_t, there, c, C)


@triton.jit
@no_type_check
def _differentiate(
    sums, query, grad, lse, delta, k, v, mask, k_t, v_t, begin, whole, broken, end, low, high, n, scale,
    c: tl.constexpr, C: tl.constexpr, N: tl.constexpr, RISES: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """dq from the keys between `begin` and `end`, in ranges as in `_attend`."""
    if RISES:
        sums = _differentiate_range(
            sums, query, grad, lse, delta, k, v, mask, k_t, v_t, begin, tl.minimum(whole, end), low, high, n, scale,
            c, C, N, True, MASKED,
        )  # fmt: skip
    sums = _differentiate_range(
        sums, query, grad, lse, delta, k, v, mask, k_t, v_t, whole, broken, low, high, n, scale, c, C, N, False, False
    )
    return _differentiate_range(
        sums, query, grad, lse, delta, k, v, mask, k_t, v_t, broken, end, low, high, n, scale, c, C, N, True, MASKED
    )


@triton.jit
@no_type_check
def _differentiate_range(
    sums, query, grad, lse, delta, k, v, mask, k_t, v_t, begin, end, low, high, n, scale,
    c: tl.constexpr, C: tl.constexpr, N: tl.constexpr, PAIRWISE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for start in range(begin, end, N):
        places = start + tl.arange(0, N)
        there = places < n
        keys = load(k, places, k_t, there, c, C)
        nothing = tl.zeros([query.shape[0], N], tl.float32)
        p = tl.exp2(dot(query, tl.trans(keys), nothing) * scale - lse[:, None])
        if PAIRWISE:
            p = tl.where(_seen(places, low, high, mask, n, MASKED), p, 0.0)
        ds = p * (dot(grad, tl.trans(load(v, places, v_t, there, c, C)), nothing) - delta[:, None])
        sums = dot(ds.to(keys.dtype), keys, sums)
    return sums


@triton.jit
@no_type_check
def _backward_window(
    dy, lse, delta, q, k, v, mask, dk, dv, heads, n, scale, root,
    dy_b, dy_h, dy_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t,
    c: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
    STEP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CHUNK: tl.constexpr, RANK: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """dk and dv of a tile of keys in the window."""
    pair = tl.program_id(1).to(tl.int64)
    row, head = pair // heads, pair % heads
    first, places, there = _own(tl.program_id(0), n, R, N)
    keys = load(of(k, row, head, k_b, k_h), places, k_t, there, c, C)  # [N, C]
    values = load(of(v, row, head, v_b, v_h), places, v_t, there, c, C)
    q, dy, lse, delta = of(q, row, head, q_b, q_h), of(dy, row, head, dy_b, dy_h), lse + pair * n, delta + pair * n

    # Blocks of queries that see the first key and, from there on, the last one; then the same from the other side.
    last = tl.minimum(first + R, n) - 1
    begin, whole = tl.maximum(first - RIGHT, 0) // STEP * STEP, tl.maximum(last - RIGHT, 0) // STEP * STEP
    broken, end = (first + LEFT) // STEP * STEP + STEP, (last + LEFT) // STEP * STEP + STEP
    broken, end = tl.minimum(broken, n), tl.minimum(end, n)
    whole = begin + tl.cdiv(whole - begin, M) * M
    broken = whole + tl.maximum(broken - whole, 0) // M * M
    dk_sum, dv_sum = tl.zeros([N, C], tl.float32), tl.zeros([N, C], tl.float32)
    dk_sum, dv_sum = _visit_queries(
        dk_sum, dv_sum, keys, values, places, q, dy, lse, delta, q_t, dy_t, begin, tl.minimum(whole, end), n, n,
        scale, c, C, M, True, False, STEP, LEFT, RIGHT, CHUNK, RANK,
    )  # fmt: skip
    dk_sum, dv_sum = _visit_queries(
        dk_sum, dv_sum, keys, values, places, q, dy, lse, delta, q_t, dy_t, whole, broken, n, n,
        scale, c, C, M, False, False, STEP, LEFT, RIGHT, CHUNK, RANK,
    )  # fmt: skip
    dk_sum, dv_sum = _visit_queries(
        dk_sum, dv_sum, keys, values, places, q, dy, lse, delta, q_t, dy_t, broken, end, n, n,
        scale, c, C, M, True, False, STEP, LEFT, RIGHT, CHUNK, RANK,
    )  # fmt: skip
    if MASKED:
        real = visible(mask + row * n, places, n, True)[:, None]
        dk_sum, dv_sum = tl.where(real, dk_sum, 0.0), tl.where(real, dv_sum, 0.0)
    store(of(dk, row, head, dk_b, dk_h), dk_sum * root, places, dk_t, there, c, C)
    store(of(dv, row, head, dv_b, dv_h), dv_sum, places, dv_t, there, c, C)


@triton.jit
@no_type_check
def _backward_extra(
    dy, lse, delta, q, extra_k, extra_v, dk, dv, heads, n, f, share, scale, root,
    dy_b, dy_h, dy_t, q_b, q_h, q_t, ek_b, ek_h, ek_t, ev_b, ev_h, ev_t,
    c: tl.constexpr, C: tl.constexpr, M: tl.constexpr, F: tl.constexpr,
    STEP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CHUNK: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """dk and dv of a tile of extra keys, from a part of the queries."""
    pair = tl.program_id(2).to(tl.int64)
    row, head = pair // heads, pair % heads
    first, places, there = _own(tl.program_id(1), f, F, F)
    keys = load(of(extra_k, row, head, ek_b, ek_h), places, ek_t, there, c, C)  # [F, C]
    values = load(of(extra_v, row, head, ev_b, ev_h), places, ev_t, there, c, C)
    q, dy, lse, delta = of(q, row, head, q_b, q_h), of(dy, row, head, dy_b, dy_h), lse + pair * n, delta + pair * n

    begin = tl.program_id(0) * share  # the first query of this part
    end = tl.minimum(begin + share, n)
    whole = begin
    if CHUNK > 0:  # the first query that sees the first key of the tile, and the first that sees them all
        begin = tl.maximum(begin, (first // RANK + 1) * CHUNK // M * M)
        whole = begin + tl.cdiv(tl.maximum(((first + F - 1) // RANK + 1) * CHUNK - begin, 0), M) * M
    dk_sum, dv_sum = tl.zeros([F, C], tl.float32), tl.zeros([F, C], tl.float32)
    dk_sum, dv_sum = _visit_queries(
        dk_sum, dv_sum, keys, values, places, q, dy, lse, delta, q_t, dy_t, begin, tl.minimum(whole, end), n, f,
        scale, c, C, M, True, True, STEP, LEFT, RIGHT, CHUNK, RANK,
    )  # fmt: skip
    dk_sum, dv_sum = _visit_queries(
        dk_sum, dv_sum, keys, values, places, q, dy, lse, delta, q_t, dy_t, whole, end, n, f,
        scale, c, C, M, False, True, STEP, LEFT, RIGHT, CHUNK, RANK,
    )  # fmt: skip
    at = (tl.program_id(0) * tl.num_programs(2).to(tl.int64) + pair) * f * c
    store(dk + at, dk_sum * root, places, c, there, c, C)
    store(dv + at, dv_sum, places, c, there, c, C)


@triton.jit
@no_type_check
def _visit_queries(
    dk, dv, keys, values, places, q, dy, lse, delta, q_t, dy_t, begin, end, n, m, scale, c: tl.constexpr,
    C: tl.constexpr, M: tl.constexpr, PAIRWISE: tl.constexpr, EXTRA: tl.constexpr, STEP: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, CHUNK: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """dk and dv from the queries between `begin` and `end`; tiles are transposed, [keys, queries]."""
    for start in range(begin, end, M):
        rows = start + tl.arange(0, M)
        there = rows < n
        query = load(q, rows, q_t, there, c, C)
        grad = load(dy, rows, dy_t, there, c, C)
        l = tl.load(lse + rows, mask=there, other=float("inf"))  # noqa: E741
        d = tl.load(delta + rows, mask=there, other=0.0)
        nothing = tl.zeros([keys.shape[0], M], tl.float32)
        p = tl.exp2(dot(keys, tl.trans(query), nothing) * scale - l[None, :])
        if PAIRWISE:
            if EXTRA:
                low, high = _extra(rows, m, CHUNK, RANK)
            else:
                low, high = _near(rows, m, STEP, LEFT, RIGHT)
            p = tl.where((places[:, None] >= low[None, :]) & (places[:, None] < high[None, :]), p, 0.0)
        dv = dot(p.to(grad.dtype), grad, dv)
        ds = p * (dot(values, tl.trans(grad), nothing) - d[None, :])
        dk = dot(ds.to(query.dtype), query, dk)
    return dk, dv


@triton.jit
@no_type_check
def _own(tile, n, R: tl.constexpr, T: tl.constexpr):
    """The first token of a tile, all its tokens, and which of them belong to this program."""
    first, at = tile * R, tl.arange(0, T)
    return first, first + at, (at < R) & (first + at < n)


@triton.jit
@no_type_check
def _near(rows, n, STEP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """The interval of tokens that each query sees: its first, and the first past its end."""
    block = rows // STEP * STEP
    return block - LEFT, tl.minimum(block + STEP + RIGHT, n)


@triton.jit
@no_type_check
def _extra(rows, f, CHUNK: tl.constexpr, RANK: tl.constexpr):
    """The same for extra keys."""
    low = rows * 0
    high = low + f
    if CHUNK > 0:
        high = rows // CHUNK * RANK
    return low, high


@triton.jit
@no_type_check
def _near_range(
    first, n, R: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Where the keys of a tile of queries begin and end, and between which of them every query sees every key."""
    low, beyond = _near(first, n, STEP, LEFT, RIGHT)
    last_low, end = _near(tl.minimum(first + R, n) - 1, n, STEP, LEFT, RIGHT)
    begin = tl.maximum(low, 0)
    whole = begin + tl.cdiv(tl.maximum(last_low, begin) - begin, N) * N
    broken = whole
    if not MASKED:
        broken = whole + tl.maximum(beyond - whole, 0) // N * N
    return begin, whole, broken, end


@triton.jit
@no_type_check
def _extra_range(first, n, f, R: tl.constexpr, F: tl.constexpr, CHUNK: tl.constexpr, RANK: tl.constexpr):
    """How far all queries of a tile see all extra keys, in whole tiles, and where their extra keys end."""
    _, whole = _extra(first, f, CHUNK, RANK)
    _, end = _extra(tl.minimum(first + R, n) - 1, f, CHUNK, RANK)
    return whole // F * F, end


@triton.jit
@no_type_check
def _seen(places, low, high, mask, n, MASKED: tl.constexpr):
    """Which keys each query sees [M, N]."""
    seen = (places[None, :] >= low[:, None]) & (places[None, :] < high[:, None])
    if MASKED:
        seen = seen & visible(mask, places, n, True)[None, :]
    return seen
