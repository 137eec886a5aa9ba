"""Near and far in Triton: exact attention in tiles, where every query sees two intervals of keys.

With s_ij = q_i . k_j / (sqrt(c) ln 2), p_ij = 2^(s_ij - l_i), and l_i the logarithm of the row's sum, all to base 2:

    forth   y_i = sum_j p_ij v_j, with the maximum so far taken out as the keys go by
    back    ds_ij = p_ij (dy_i . v_j - D_i)      D_i = dy_i . y_i
            dq_i = sum_j ds_ij k_j      dk_j = sum_i ds_ij q_i      dv_j = sum_i p_ij dy_i

The intervals of neighbouring queries nearly coincide, so a tile of queries has a range of keys of which it asks pair by
pair only at the ends. A program owns a tile of queries, or on the way back a tile of keys and all queries that see it.
Where there are few far keys, several programs share the queries of one tile, and their sums are added in order.
"""

from dataclasses import dataclass
from typing import Any, no_type_check  # a Triton function is no Python function, and its annotations are no types

import torch
import triton
import triton.language as tl
from jaxtyping import Float, UInt8
from torch import Tensor

from longspan.kernels.launch import ceil, empty_like, next_power_of_2, strides
from longspan.kernels.tiles import dot, load, store

# The tile a program owns, the tile it meets in each turn, warps and turns in flight, by bytes of a number and whether
# heads are wider than 64.
FORTH = {(2, False): (64, 64, 4, 3), (2, True): (128, 64, 8, 2), (4, False): (32, 32, 4, 2), (4, True): (32, 16, 8, 2)}
BACK = {(2, False): (64, 64, 4, 2), (2, True): (64, 64, 8, 2), (4, False): (32, 16, 4, 2), (4, True): (32, 16, 8, 2)}
PROGRAMS = 512  # about as many as the largest GPUs hold at once
LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Rule:
    """Who sees whom, as in `near_far`."""

    step: int
    left: int
    right: int
    chunk: int
    rank: int

    @property
    def constants(self) -> dict[str, int]:
        return {
            "STEP": self.step, "LEFT": self.left, "RIGHT": self.right, "CHUNK": self.chunk, "RANK": self.rank
        }  # fmt: skip

    def owned(self, tile: int, beyond: int) -> int:
        """How much of its tile a program takes: where a bit less meets one tile instead of two, that."""
        fewer = (tile - beyond) // self.step * self.step
        return fewer if 2 * fewer >= tile else tile


def forth(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n c"],
    far_k: Float[Tensor, "b h f c"],
    far_v: Float[Tensor, "b h f c"],
    mask: UInt8[Tensor, "b n"] | None,
    rule: Rule,
) -> tuple[Float[Tensor, "b h n c"], Float[Tensor, "b h n"]]:
    (b, h, n, c), f = q.shape, far_k.shape[2]
    y, log = empty_like(q, c, q.dtype), q.new_empty(b, h, n, dtype=torch.float32)
    M, N, how = launch(FORTH, q)
    R = rule.owned(M, rule.left + rule.right)
    _forth[(ceil(n, R), b * h)](
        q, k, v, far_k, far_v, mask, y, log, h, n, f, LOG2_E / c**0.5, *strides(q, k, v, far_k, far_v, y),
        M=M, N=N, F=_far_tile(N, f), R=R, MASKED=mask is not None, **rule.constants, **how,
    )  # fmt: skip
    return y, log


def back_to_queries(
    dy: Float[Tensor, "b h n c"],
    y: Float[Tensor, "b h n c"],
    log: Float[Tensor, "b h n"],
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n c"],
    far_k: Float[Tensor, "b h f c"],
    far_v: Float[Tensor, "b h f c"],
    mask: UInt8[Tensor, "b n"] | None,
    rule: Rule,
) -> tuple[Float[Tensor, "b h n c"], Float[Tensor, "b h n"]]:
    """The gradients of the queries, and D."""
    (b, h, n, c), f = q.shape, far_k.shape[2]
    dq, through = empty_like(q, c, q.dtype), torch.empty_like(log)
    M, N, how = launch(BACK, q)
    R = rule.owned(M, rule.left + rule.right)
    _back_to_queries[(ceil(n, R), b * h)](
        dy, y, log, through, q, k, v, far_k, far_v, mask, dq, h, n, f, LOG2_E / c**0.5, c**-0.5,
        *strides(dy, y, q, k, v, far_k, far_v, dq),
        M=M, N=N, F=_far_tile(N, f), R=R, MASKED=mask is not None, **rule.constants, **how,
    )  # fmt: skip
    return dq, through


def back_to_near(
    dy: Float[Tensor, "b h n c"],
    log: Float[Tensor, "b h n"],
    through: Float[Tensor, "b h n"],
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n c"],
    mask: UInt8[Tensor, "b n"] | None,
    rule: Rule,
) -> tuple[Float[Tensor, "b h n c"], Float[Tensor, "b h n c"]]:
    """The gradients of near keys and values."""
    b, h, n, c = q.shape
    dk, dv = (empty_like(x, c, x.dtype) for x in (k, v))
    N, M, how = launch(BACK, q)
    beyond = (ceil(rule.left, rule.step) + ceil(rule.right, rule.step)) * rule.step
    R = rule.owned(N, beyond)
    _back_to_near[(ceil(n, R), b * h)](
        dy, log, through, q, k, v, mask, dk, dv, h, n, LOG2_E / c**0.5, c**-0.5, *strides(dy, q, k, v, dk, dv),
        M=M, N=N, R=R, MASKED=mask is not None, **rule.constants, **how,
    )  # fmt: skip
    return dk, dv


def back_to_far(
    dy: Float[Tensor, "b h n c"],
    log: Float[Tensor, "b h n"],
    through: Float[Tensor, "b h n"],
    q: Float[Tensor, "b h n c"],
    far_k: Float[Tensor, "b h f c"],
    far_v: Float[Tensor, "b h f c"],
    rule: Rule,
) -> tuple[Float[Tensor, "b h f c"], Float[Tensor, "b h f c"]]:
    """The gradients of far keys and values."""
    (b, h, n, c), f = q.shape, far_k.shape[2]
    N, M, how = launch(BACK, q)
    F = _far_tile(N, f)
    tiles = ceil(f, F)
    parts = max(1, min(ceil(PROGRAMS, max(1, tiles * b * h)), ceil(n, 4 * M)))
    dk, dv = (q.new_empty(parts, b, h, f, c, dtype=torch.float32) for _ in range(2))
    if f:
        _back_to_far[(parts, tiles, b * h)](
            dy, log, through, q, far_k, far_v, dk, dv, h, n, f, ceil(ceil(n, M), parts) * M,
            LOG2_E / c**0.5, c**-0.5, *strides(dy, q, far_k, far_v), M=M, F=F, **rule.constants, **how,
        )  # fmt: skip
    return dk.sum(dim=0).to(far_k.dtype), dv.sum(dim=0).to(far_v.dtype)


def launch(shapes: dict, q: Float[Tensor, "b h n c"]) -> tuple[int, int, dict[str, Any]]:
    """The tile of a program, the tiles it meets, and the rest."""
    c = q.shape[3]
    owned, met, warps, stages = shapes[q.element_size(), c > 64]
    return owned, met, {"c": c, "C": next_power_of_2(c), "num_warps": warps, "num_stages": stages}


def _far_tile(tile: int, far: int) -> int:
    return min(tile, next_power_of_2(max(far, 1)))


@triton.jit
@no_type_check
def _forth(
    q, k, v, far_k, far_v, mask, y, log, heads, n, f, scale,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, fk_b, fk_h, fk_t, fv_b, fv_h, fv_t, y_b, y_h, y_t,
    c: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr, F: tl.constexpr, R: tl.constexpr,
    STEP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CHUNK: tl.constexpr, RANK: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(1).to(tl.int64)
    row, head = pair // heads, pair % heads
    first, rows, there = _own(tl.num_programs(0) - 1 - tl.program_id(0), n, R, M)  # those with most far keys begin
    query = load(q + row * q_b + head * q_h, rows, q_t, there, c, C)  # [M, C]
    k, v, mask = k + row * k_b + head * k_h, v + row * v_b + head * v_h, mask + row * n if MASKED else mask
    far_k, far_v = far_k + row * fk_b + head * fk_h, far_v + row * fv_b + head * fv_h
    y_sum, top, total = tl.zeros([M, C], tl.float32), tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32)

    low, high = _far(rows, f, CHUNK, RANK)
    whole, end = _far_ends(first, n, f, R, F, CHUNK, RANK)
    y_sum, top, total = _meet(
        y_sum, top, total, query, far_k, far_v, mask, fk_t, fv_t, 0, whole, low, high, f, scale, c, C, F, False, False
    )
    y_sum, top, total = _meet(
        y_sum, top, total, query, far_k, far_v, mask, fk_t, fv_t, whole, end, low, high, f, scale, c, C, F, True, False
    )
    low, high = _near(rows, n, STEP, LEFT, RIGHT)
    begin, whole, broken, end = _near_ends(first, n, R, N, STEP, LEFT, RIGHT, MASKED)
    y_sum, top, total = _meet(
        y_sum, top, total, query, k, v, mask, k_t, v_t, begin, tl.minimum(whole, end), low, high, n, scale, c, C, N,
        True, MASKED,
    )  # fmt: skip
    y_sum, top, total = _meet(
        y_sum, top, total, query, k, v, mask, k_t, v_t, whole, broken, low, high, n, scale, c, C, N, False, False
    )
    y_sum, top, total = _meet(
        y_sum, top, total, query, k, v, mask, k_t, v_t, broken, end, low, high, n, scale, c, C, N, True, MASKED
    )
    total = tl.where(there, total, 1.0)
    store(y + row * y_b + head * y_h, y_sum / total[:, None], rows, y_t, there, c, C)
    tl.store(log + pair * n + rows, top + tl.log2(total), mask=there)


@triton.jit
@no_type_check
def _meet(
    y_sum, top, total, query, k, v, mask, k_t, v_t, begin, end, low, high, n, scale, c: tl.constexpr, C: tl.constexpr,
    N: tl.constexpr, RULED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The keys from `begin` to `end` come by; where they are RULED, each query sees its own interval of them."""
    for start in range(begin, end, N):
        places = start + tl.arange(0, N)
        there = places < n
        s = dot(query, tl.trans(load(k, places, k_t, there, c, C)), tl.zeros([query.shape[0], N], tl.float32)) * scale
        if RULED:
            s = tl.where(_seen(places, low, high, mask, there, MASKED), s, -1e30)  # wiped out by whatever is seen
        higher = tl.maximum(top, tl.max(s, axis=1))
        p, fade = tl.exp2(s - higher[:, None]), tl.exp2(top - higher)
        values = load(v, places, v_t, there, c, C)
        y_sum = dot(p.to(values.dtype), values, y_sum * fade[:, None])
        total = total * fade + tl.sum(p, axis=1)
        top = higher
    return y_sum, top, total


@triton.jit
@no_type_check
def _back_to_queries(
    dy, y, log, through, q, k, v, far_k, far_v, mask, dq, heads, n, f, scale, root,
    dy_b, dy_h, dy_t, y_b, y_h, y_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, fk_b, fk_h, fk_t, fv_b, fv_h, fv_t,
    dq_b, dq_h, dq_t,
    c: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr, F: tl.constexpr, R: tl.constexpr,
    STEP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CHUNK: tl.constexpr, RANK: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(1).to(tl.int64)
    row, head = pair // heads, pair % heads
    first, rows, there = _own(tl.num_programs(0) - 1 - tl.program_id(0), n, R, M)
    query = load(q + row * q_b + head * q_h, rows, q_t, there, c, C)  # [M, C]
    wanted = load(dy + row * dy_b + head * dy_h, rows, dy_t, there, c, C)
    found = load(y + row * y_b + head * y_h, rows, y_t, there, c, C)
    D = tl.sum(wanted.to(tl.float32) * found.to(tl.float32), axis=1)  # [M]
    tl.store(through + pair * n + rows, D, mask=there)
    level = tl.load(log + pair * n + rows, mask=there, other=float("inf"))
    k, v, mask = k + row * k_b + head * k_h, v + row * v_b + head * v_h, mask + row * n if MASKED else mask
    far_k, far_v = far_k + row * fk_b + head * fk_h, far_v + row * fv_b + head * fv_h
    total = tl.zeros([M, C], tl.float32)

    low, high = _far(rows, f, CHUNK, RANK)
    whole, end = _far_ends(first, n, f, R, F, CHUNK, RANK)
    total = _meet_back(
        total,
        query,
        wanted,
        level,
        D,
        far_k,
        far_v,
        mask,
        fk_t,
        fv_t,
        0,
        whole,
        low,
        high,
        f,
        scale,
        c,
        C,
        F,
        False,
        False,
    )
    total = _meet_back(
        total, query, wanted, level, D, far_k, far_v, mask, fk_t, fv_t, whole, end, low, high, f, scale, c, C, F,
        True, False,
    )  # fmt: skip
    low, high = _near(rows, n, STEP, LEFT, RIGHT)
    begin, whole, broken, end = _near_ends(first, n, R, N, STEP, LEFT, RIGHT, MASKED)
    total = _meet_back(
        total, query, wanted, level, D, k, v, mask, k_t, v_t, begin, tl.minimum(whole, end), low, high, n, scale,
        c, C, N, True, MASKED,
    )  # fmt: skip
    total = _meet_back(
        total, query, wanted, level, D, k, v, mask, k_t, v_t, whole, broken, low, high, n, scale, c, C, N, False, False
    )
    total = _meet_back(
        total, query, wanted, level, D, k, v, mask, k_t, v_t, broken, end, low, high, n, scale, c, C, N, True, MASKED
    )
    store(dq + row * dq_b + head * dq_h, total * root, rows, dq_t, there, c, C)


@triton.jit
@no_type_check
def _meet_back(
    total, query, wanted, level, D, k, v, mask, k_t, v_t, begin, end, low, high, n, scale, c: tl.constexpr,
    C: tl.constexpr, N: tl.constexpr, RULED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """What the queries get back from the keys between `begin` and `end`."""
    for start in range(begin, end, N):
        places = start + tl.arange(0, N)
        there = places < n
        keys = load(k, places, k_t, there, c, C)
        nothing = tl.zeros([query.shape[0], N], tl.float32)
        p = tl.exp2(dot(query, tl.trans(keys), nothing) * scale - level[:, None])
        if RULED:
            p = tl.where(_seen(places, low, high, mask, there, MASKED), p, 0.0)
        ds = p * (dot(wanted, tl.trans(load(v, places, v_t, there, c, C)), nothing) - D[:, None])
        total = dot(ds.to(keys.dtype), keys, total)
    return total


@triton.jit
@no_type_check
def _back_to_near(
    dy, log, through, q, k, v, mask, dk, dv, heads, n, scale, root,
    dy_b, dy_h, dy_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t,
    c: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
    STEP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CHUNK: tl.constexpr, RANK: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(1).to(tl.int64)
    row, head = pair // heads, pair % heads
    first, places, there = _own(tl.program_id(0), n, R, N)
    keys = load(k + row * k_b + head * k_h, places, k_t, there, c, C)  # [N, C]
    values = load(v + row * v_b + head * v_h, places, v_t, there, c, C)
    q, dy, log, through = q + row * q_b + head * q_h, dy + row * dy_b + head * dy_h, log + pair * n, through + pair * n

    # Blocks of queries that see the first key and, from there on, the last one; then the same from the other side.
    last = tl.minimum(first + R, n) - 1
    begin, whole = tl.maximum(first - RIGHT, 0) // STEP * STEP, tl.maximum(last - RIGHT, 0) // STEP * STEP
    broken, end = (first + LEFT) // STEP * STEP + STEP, (last + LEFT) // STEP * STEP + STEP
    broken, end = tl.minimum(broken, n), tl.minimum(end, n)
    whole = begin + tl.cdiv(whole - begin, M) * M
    broken = whole + tl.maximum(broken - whole, 0) // M * M
    dk_sum, dv_sum = tl.zeros([N, C], tl.float32), tl.zeros([N, C], tl.float32)
    dk_sum, dv_sum = _meet_queries(
        dk_sum, dv_sum, keys, values, places, q, dy, log, through, q_t, dy_t, begin, tl.minimum(whole, end), n, n,
        scale, c, C, M, True, False, STEP, LEFT, RIGHT, CHUNK, RANK,
    )  # fmt: skip
    dk_sum, dv_sum = _meet_queries(
        dk_sum, dv_sum, keys, values, places, q, dy, log, through, q_t, dy_t, whole, broken, n, n,
        scale, c, C, M, False, False, STEP, LEFT, RIGHT, CHUNK, RANK,
    )  # fmt: skip
    dk_sum, dv_sum = _meet_queries(
        dk_sum, dv_sum, keys, values, places, q, dy, log, through, q_t, dy_t, broken, end, n, n,
        scale, c, C, M, True, False, STEP, LEFT, RIGHT, CHUNK, RANK,
    )  # fmt: skip
    if MASKED:
        real = (tl.load(mask + row * n + places, mask=there, other=0) != 0)[:, None]
        dk_sum, dv_sum = tl.where(real, dk_sum, 0.0), tl.where(real, dv_sum, 0.0)
    store(dk + row * dk_b + head * dk_h, dk_sum * root, places, dk_t, there, c, C)
    store(dv + row * dv_b + head * dv_h, dv_sum, places, dv_t, there, c, C)


@triton.jit
@no_type_check
def _back_to_far(
    dy, log, through, q, far_k, far_v, dk, dv, heads, n, f, share, scale, root,
    dy_b, dy_h, dy_t, q_b, q_h, q_t, fk_b, fk_h, fk_t, fv_b, fv_h, fv_t,
    c: tl.constexpr, C: tl.constexpr, M: tl.constexpr, F: tl.constexpr,
    STEP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, CHUNK: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(2).to(tl.int64)
    row, head = pair // heads, pair % heads
    first, places, there = _own(tl.program_id(1), f, F, F)
    keys = load(far_k + row * fk_b + head * fk_h, places, fk_t, there, c, C)  # [F, C]
    values = load(far_v + row * fv_b + head * fv_h, places, fv_t, there, c, C)
    q, dy, log, through = q + row * q_b + head * q_h, dy + row * dy_b + head * dy_h, log + pair * n, through + pair * n

    begin = tl.program_id(0) * share  # of the queries of this part
    end = tl.minimum(begin + share, n)
    whole = begin
    if CHUNK > 0:  # the first query that sees the first key of the tile, and the first that sees them all
        begin = tl.maximum(begin, (first // RANK + 1) * CHUNK // M * M)
        whole = begin + tl.cdiv(tl.maximum(((first + F - 1) // RANK + 1) * CHUNK - begin, 0), M) * M
    dk_sum, dv_sum = tl.zeros([F, C], tl.float32), tl.zeros([F, C], tl.float32)
    dk_sum, dv_sum = _meet_queries(
        dk_sum, dv_sum, keys, values, places, q, dy, log, through, q_t, dy_t, begin, tl.minimum(whole, end), n, f,
        scale, c, C, M, True, True, STEP, LEFT, RIGHT, CHUNK, RANK,
    )  # fmt: skip
    dk_sum, dv_sum = _meet_queries(
        dk_sum, dv_sum, keys, values, places, q, dy, log, through, q_t, dy_t, whole, end, n, f,
        scale, c, C, M, False, True, STEP, LEFT, RIGHT, CHUNK, RANK,
    )  # fmt: skip
    at = (tl.program_id(0) * tl.num_programs(2).to(tl.int64) + pair) * f * c
    store(dk + at, dk_sum * root, places, c, there, c, C)
    store(dv + at, dv_sum, places, c, there, c, C)


@triton.jit
@no_type_check
def _meet_queries(
    dk, dv, keys, values, places, q, dy, log, through, q_t, dy_t, begin, end, n, m, scale, c: tl.constexpr,
    C: tl.constexpr, M: tl.constexpr, RULED: tl.constexpr, FAR: tl.constexpr, STEP: tl.constexpr, LEFT: tl.constexpr,
    RIGHT: tl.constexpr, CHUNK: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """What keys and values get back from the queries between `begin` and `end`; tiles are turned, [keys, queries]."""
    for start in range(begin, end, M):
        rows = start + tl.arange(0, M)
        there = rows < n
        query = load(q, rows, q_t, there, c, C)
        wanted = load(dy, rows, dy_t, there, c, C)
        level = tl.load(log + rows, mask=there, other=float("inf"))
        D = tl.load(through + rows, mask=there, other=0.0)
        nothing = tl.zeros([keys.shape[0], M], tl.float32)
        p = tl.exp2(dot(keys, tl.trans(query), nothing) * scale - level[None, :])
        if RULED:
            if FAR:
                low, high = _far(rows, m, CHUNK, RANK)
            else:
                low, high = _near(rows, m, STEP, LEFT, RIGHT)
            p = tl.where((places[:, None] >= low[None, :]) & (places[:, None] < high[None, :]), p, 0.0)
        dv = dot(p.to(wanted.dtype), wanted, dv)
        ds = p * (dot(values, tl.trans(wanted), nothing) - D[None, :])
        dk = dot(ds.to(query.dtype), query, dk)
    return dk, dv


@triton.jit
@no_type_check
def _own(tile, n, R: tl.constexpr, T: tl.constexpr):
    """The first token of a tile, all of them, and which of them are this program's."""
    first, at = tile * R, tl.arange(0, T)
    return first, first + at, (at < R) & (first + at < n)


@triton.jit
@no_type_check
def _near(rows, n, STEP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """The interval of tokens that each query sees: its first, and the first beyond."""
    block = rows // STEP * STEP
    return block - LEFT, tl.minimum(block + STEP + RIGHT, n)


@triton.jit
@no_type_check
def _far(rows, f, CHUNK: tl.constexpr, RANK: tl.constexpr):
    low = rows * 0
    high = low + f
    if CHUNK > 0:
        high = rows // CHUNK * RANK
    return low, high


@triton.jit
@no_type_check
def _near_ends(
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
def _far_ends(
    first, n, f, R: tl.constexpr, F: tl.constexpr, CHUNK: tl.constexpr, RANK: tl.constexpr
):  # fmt: skip
    """Up to where all queries of a tile see all far keys, in whole tiles, and where their far keys end."""
    _, whole = _far(first, f, CHUNK, RANK)
    _, end = _far(tl.minimum(first + R, n) - 1, f, CHUNK, RANK)
    return whole // F * F, end


@triton.jit
@no_type_check
def _seen(places, low, high, mask, there, MASKED: tl.constexpr):
    """Which keys each query sees [M, N]."""
    seen = (places[None, :] >= low[:, None]) & (places[None, :] < high[:, None])
    if MASKED:
        seen = seen & (tl.load(mask + places, mask=there, other=0) != 0)[None, :]
    return seen
