"""Paired blocks in Triton: a program owns a block of queries, and with it both blocks of keys that these see.

With s_ij = q_i . k_j / (sqrt(c) ln 2) over the keys of both blocks, whose sum of 2^s_ij is at hand:

    forth   y_i = sum_j p_ij v_j
    back    ds_ij = p_ij (g_ij - sum_r p_ir g_ir)      g_ij = dy_i . v_j
            dq_i = sum_j ds_ij k_j      dk_j = sum_i ds_ij q_i      dv_j = sum_i p_ij dy_i

The way back makes the weights again, so that nothing is kept; and no one else sees these keys, so that nothing is added
to what another program found.
"""

from dataclasses import dataclass
from typing import no_type_check  # a Triton function is no Python function, and its annotations are no types

import triton
import triton.language as tl
from jaxtyping import Float, UInt8
from torch import Tensor

from longspan.kernels.launch import ceil, empty_like, next_power_of_2, strides
from longspan.kernels.tiles import dot, load, of, store

WARPS = 4
LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Rule:
    """Who sees whom, as in `paired_blocks`."""

    block: int
    causal: bool
    mask: UInt8[Tensor, "b n"] | None
    other: UInt8[Tensor, "_b _h g j"] | None
    begun: UInt8[Tensor, "b n"] | None

    @property
    def masks(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return self.mask, self.other, self.begun

    def apart(self, b: int, h: int) -> tuple[int, int]:
        """How far the masks of other keys lie apart for two rows of the batch and for two heads."""
        if self.other is None:
            return 0, 0
        row, head, *_ = self.other.expand(b, h, -1, -1).stride()
        return row, head


def forth(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    other_k: Float[Tensor, "b h g j c"],
    other_v: Float[Tensor, "b h g j e"],
    rule: Rule,
) -> Float[Tensor, "b h n e"]:
    (b, h, n, c), e = q.shape, v.shape[3]
    y = empty_like(q, e, v.dtype)
    _forth[ceil(n, rule.block), b * h](
        q, k, v, other_k, other_v, *rule.masks, y, h, n, LOG2_E / c**0.5, *rule.apart(b, h), *strides(q, k, v, y),
        **constants(c, e, other_k.shape[3], rule),
    )  # fmt: skip
    return y


def back(
    dy: Float[Tensor, "b h n e"],
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    other_k: Float[Tensor, "b h g j c"],
    other_v: Float[Tensor, "b h g j e"],
    rule: Rule,
) -> tuple[
    Float[Tensor, "b h n c"],
    Float[Tensor, "b h n c"],
    Float[Tensor, "b h n e"],
    Float[Tensor, "b h g j c"],
    Float[Tensor, "b h g j e"],
]:
    (b, h, n, c), e = q.shape, v.shape[3]
    dq, dk, dv = (empty_like(x, x.shape[3], x.dtype) for x in (q, k, v))
    d_other_k, d_other_v = (x.new_empty(x.shape) for x in (other_k, other_v))
    _back[ceil(n, rule.block), b * h](
        dy, q, k, v, other_k, other_v, *rule.masks, dq, dk, dv, d_other_k, d_other_v, h, n, LOG2_E / c**0.5, c**-0.5,
        *rule.apart(b, h), *strides(dy, q, k, v, dq, dk, dv), **constants(c, e, other_k.shape[3], rule),
    )  # fmt: skip
    return dq, dk, dv, d_other_k, d_other_v


def constants(c: int, e: int, j: int, rule: Rule) -> dict[str, int | bool]:
    """What a program is compiled for."""
    return {
        "c": c, "C": next_power_of_2(c), "e": e, "E": next_power_of_2(e),
        "S": rule.block, "T": next_power_of_2(rule.block), "j": j,
        "J": next_power_of_2(j), "CAUSAL": rule.causal, "MASKED": rule.mask is not None,
        "HIDES": rule.other is not None, "BEGUN": rule.begun is not None, "num_warps": WARPS, "num_stages": 1,
    }  # fmt: skip


@triton.jit
@no_type_check
def _forth(
    q, k, v, other_k, other_v, mask, hidden, begun, y, heads, n, scale, hidden_b, hidden_h,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, y_b, y_h, y_t,
    c: tl.constexpr, C: tl.constexpr, e: tl.constexpr, E: tl.constexpr, S: tl.constexpr, T: tl.constexpr,
    j: tl.constexpr, J: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, HIDES: tl.constexpr,
    BEGUN: tl.constexpr,
):  # fmt: skip
    row, head, tokens, there, others, real = _own(heads, n, S, T, j, J)
    query = load(of(q, row, head, q_b, q_h), tokens, q_t, there, c, C)  # [T, C]
    keys, other_keys = _both(k, other_k, row, head, k_b, k_h, k_t, tokens, there, others, real, c, C)
    p, other_p = _weights(
        query, keys, other_keys, mask, hidden, begun, row, head, tokens, there, n, scale,
        hidden_b, hidden_h, T, j, J, CAUSAL, MASKED, HIDES, BEGUN,
    )  # fmt: skip
    values, other_values = _both(v, other_v, row, head, v_b, v_h, v_t, tokens, there, others, real, e, E)
    sums = dot(p.to(values.dtype), values, tl.zeros([T, E], tl.float32))
    sums = dot(other_p.to(values.dtype), other_values, sums)
    store(of(y, row, head, y_b, y_h), sums, tokens, y_t, there, e, E)


@triton.jit
@no_type_check
def _back(
    dy, q, k, v, other_k, other_v, mask, hidden, begun, dq, dk, dv, d_other_k, d_other_v, heads, n, scale, root,
    hidden_b, hidden_h, dy_b, dy_h, dy_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t,
    dq_b, dq_h, dq_t, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t,
    c: tl.constexpr, C: tl.constexpr, e: tl.constexpr, E: tl.constexpr, S: tl.constexpr, T: tl.constexpr,
    j: tl.constexpr, J: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, HIDES: tl.constexpr,
    BEGUN: tl.constexpr,
):  # fmt: skip
    row, head, tokens, there, others, real = _own(heads, n, S, T, j, J)
    query = load(of(q, row, head, q_b, q_h), tokens, q_t, there, c, C)  # [T, C]
    keys, other_keys = _both(k, other_k, row, head, k_b, k_h, k_t, tokens, there, others, real, c, C)
    p, other_p = _weights(
        query, keys, other_keys, mask, hidden, begun, row, head, tokens, there, n, scale,
        hidden_b, hidden_h, T, j, J, CAUSAL, MASKED, HIDES, BEGUN,
    )  # fmt: skip
    wanted = load(of(dy, row, head, dy_b, dy_h), tokens, dy_t, there, e, E)  # [T, E]
    store(of(dv, row, head, dv_b, dv_h), _turned(p, wanted), tokens, dv_t, there, e, E)
    store(d_other_v, _turned(other_p, wanted), others, e, real, e, E)

    values, other_values = _both(v, other_v, row, head, v_b, v_h, v_t, tokens, there, others, real, e, E)
    g = dot(wanted, tl.trans(values), tl.zeros([T, T], tl.float32))
    other_g = dot(wanted, tl.trans(other_values), tl.zeros([T, J], tl.float32))
    through = tl.sum(p * g, axis=1) + tl.sum(other_p * other_g, axis=1)
    ds = (p * (g - through[:, None])).to(query.dtype)
    other_ds = (other_p * (other_g - through[:, None])).to(query.dtype)
    store(of(dk, row, head, dk_b, dk_h), _turned(ds, query) * root, tokens, dk_t, there, c, C)
    store(d_other_k, _turned(other_ds, query) * root, others, c, real, c, C)
    sums = dot(other_ds, other_keys, dot(ds, keys, tl.zeros([T, C], tl.float32)))
    store(of(dq, row, head, dq_b, dq_h), sums * root, tokens, dq_t, there, c, C)


@triton.jit
@no_type_check
def _own(heads, n, S: tl.constexpr, T: tl.constexpr, j: tl.constexpr, J: tl.constexpr):
    """Row and head of this program, its tokens, its other keys among all of these, and which of both there are."""
    block, pair = tl.program_id(0), tl.program_id(1)
    at, beside = tl.arange(0, T), tl.arange(0, J)
    tokens = block * S + at
    others = (pair.to(tl.int64) * tl.num_programs(0) + block) * j + beside
    return pair // heads, pair % heads, tokens, (at < S) & (tokens < n), others, beside < j


@triton.jit
@no_type_check
def _both(
    x, other, row, head, x_b, x_h, x_t, tokens, there, others, real, c: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    return load(of(x, row, head, x_b, x_h), tokens, x_t, there, c, C), load(other, others, c, real, c, C)


@triton.jit
@no_type_check
def _weights(
    query, keys, other_keys, mask, hidden, begun, row, head, tokens, there, n, scale, hidden_b, hidden_h,
    T: tl.constexpr, j: tl.constexpr, J: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, HIDES: tl.constexpr,
    BEGUN: tl.constexpr,
):  # fmt: skip
    """The weights of own keys [T, T] and of the others [T, J], 0 where a query does not see one."""
    real = there
    if MASKED:
        real = there & (tl.load(mask + row.to(tl.int64) * n + tokens, mask=there, other=0) != 0)
    seen = tl.broadcast_to(real[None, :], [T, T])
    if CAUSAL:
        seen = seen & (tokens[None, :] <= tokens[:, None])
    beside = tl.arange(0, J)
    real = beside < j
    if HIDES:
        at = of(hidden, row, head, hidden_b, hidden_h) + tl.program_id(0) * j + beside
        real = real & (tl.load(at, mask=real, other=0) != 0)
    other_seen = tl.broadcast_to(real[None, :], [T, J])
    if BEGUN:
        other_seen &= (tl.load(begun + row.to(tl.int64) * n + tokens, mask=there, other=0) != 0)[:, None]

    s = dot(query, tl.trans(keys), tl.zeros([T, T], tl.float32)) * scale
    other_s = dot(query, tl.trans(other_keys), tl.zeros([T, J], tl.float32)) * scale
    s, other_s = tl.where(seen, s, float("-inf")), tl.where(other_seen, other_s, float("-inf"))
    top = tl.maximum(tl.max(s, axis=1), tl.max(other_s, axis=1))
    top = tl.where(top == float("-inf"), 0.0, top)[:, None]  # of a query that sees nothing
    p, other_p = tl.exp2(s - top), tl.exp2(other_s - top)
    total = tl.sum(p, axis=1) + tl.sum(other_p, axis=1)
    share = (1 / tl.where(total > 0, total, 1.0))[:, None]
    return p * share, other_p * share


@triton.jit
@no_type_check
def _turned(weights, rows):
    """weights^T rows."""
    nothing = tl.zeros([weights.shape[1], rows.shape[1]], tl.float32)
    return dot(tl.trans(weights.to(rows.dtype)), rows, nothing)
