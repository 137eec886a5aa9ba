"""Attention of blocks to themselves and extra keys in Triton: a program owns a block of queries and all their keys.

With s_ij = q_i . k_j / (sqrt(c) ln 2) over both kinds of keys, and p_ij = 2^s_ij / sum_r 2^s_ir:

    forward     y_i = sum_j p_ij v_j
    backward    ds_ij = p_ij (g_ij - delta_i)      g_ij = dy_i . v_j      delta_i = sum_j p_ij g_ij
                dq_i = sum_j ds_ij k_j      dk_j = sum_i ds_ij q_i      dv_j = sum_i p_ij dy_i

The backward pass recomputes the weights, so that nothing is saved; and no other program sees these keys, so that
gradients are written once.
"""

from typing import Any, no_type_check  # Triton functions are not Python functions, nor are their annotations types

import triton
import triton.language as tl
from jaxtyping import Float, UInt8
from torch import Tensor

from longspan.kernels.block_sparse.extra_keys_triton import LOG2_E
from longspan.kernels.launch import ceil, empty_like, next_power_of_2, strides
from longspan.kernels.operator import like
from longspan.kernels.tiles import dot, load, of, store, visible

WARPS = 4


Tensors = tuple[
    Float[Tensor, "b h n c"],
    Float[Tensor, "b h n c"],
    Float[Tensor, "b h n e"],
    Float[Tensor, "b h g j c"],
    Float[Tensor, "b h g j e"],
]  # q, k, v, extra_k, extra_v
Masks = tuple[
    UInt8[Tensor, "b n"] | None, UInt8[Tensor, "_b _h g j"] | None, UInt8[Tensor, "b n"] | None
]  # real keys, real extra keys, and the queries that see these


def forward(tensors: Tensors, masks: Masks, block: int, causal: bool) -> Float[Tensor, "b h n e"]:
    q, k, v, extra_k, _ = tensors
    (b, h, n, c), e = q.shape, v.shape[3]
    y = empty_like(q, e, v.dtype)
    _forward[ceil(n, block), b * h](
        *tensors, *masks, y, h, n, LOG2_E / c**0.5, *_mask_strides(masks[1], b, h), *strides(q, k, v, y),
        **constants(c, e, extra_k.shape[3], block, causal, *masks),
    )  # fmt: skip
    return y


def backward(dy: Float[Tensor, "b h n e"], tensors: Tensors, masks: Masks, block: int, causal: bool) -> Tensors:
    """The gradients of q, k, v, extra_k and extra_v."""
    q, k, v, extra_k, extra_v = tensors
    (b, h, n, c), e = q.shape, v.shape[3]
    dq, dk, dv = like(q, k, v)
    d_extra_k, d_extra_v = (x.new_empty(x.shape) for x in (extra_k, extra_v))
    _backward[ceil(n, block), b * h](
        dy, *tensors, *masks, dq, dk, dv, d_extra_k, d_extra_v, h, n, LOG2_E / c**0.5, c**-0.5,
        *_mask_strides(masks[1], b, h), *strides(dy, q, k, v, dq, dk, dv),
        **constants(c, e, extra_k.shape[3], block, causal, *masks),
    )  # fmt: skip
    return dq, dk, dv, d_extra_k, d_extra_v


def _mask_strides(mask: UInt8[Tensor, "_b _h g j"] | None, b: int, h: int) -> tuple[int, ...]:
    """Strides from row to row and from head to head."""
    return (0, 0) if mask is None else mask.expand(b, h, -1, -1).stride()[:2]


def constants(c: int, e: int, j: int, block: int, causal: bool, mask: Any, extra_mask: Any, sees: Any) -> dict:
    """The compile-time constants of a program."""
    return {
        "c": c, "C": next_power_of_2(c), "e": e, "E": next_power_of_2(e), "S": block, "T": next_power_of_2(block),
        "j": j, "J": next_power_of_2(j), "CAUSAL": causal, "MASKED": mask is not None,
        "EXTRA_MASKED": extra_mask is not None, "SOME_SEE": sees is not None, "num_warps": WARPS, "num_stages": 1,
    }  # fmt: skip


@triton.jit
@no_type_check
def _forward(
    q, k, v, extra_k, extra_v, mask, extra_mask, sees, y, heads, n, scale, extra_b, extra_h,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, y_b, y_h, y_t,
    c: tl.constexpr, C: tl.constexpr, e: tl.constexpr, E: tl.constexpr, S: tl.constexpr, T: tl.constexpr,
    j: tl.constexpr, J: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, EXTRA_MASKED: tl.constexpr,
    SOME_SEE: tl.constexpr,
):  # fmt: skip
    row, head, tokens, there, extra, exists = _own(heads, n, S, T, j, J)
    _, _, _, p, extra_p = _weights(
        of(q, row, head, q_b, q_h), of(k, row, head, k_b, k_h), extra_k, q_t, k_t, mask, extra_mask, sees, row, head,
        tokens, there, extra, exists, n, scale, extra_b, extra_h, c, C, T, j, J, CAUSAL, MASKED, EXTRA_MASKED, SOME_SEE,
    )  # fmt: skip
    values = load(of(v, row, head, v_b, v_h), tokens, v_t, there, e, E)
    extra_values = load(extra_v, extra, e, exists, e, E)
    sums = dot(p.to(values.dtype), values, tl.zeros([T, E], tl.float32))
    sums = dot(extra_p.to(values.dtype), extra_values, sums)
    store(of(y, row, head, y_b, y_h), sums, tokens, y_t, there, e, E)


@triton.jit
@no_type_check
def _backward(
    dy, q, k, v, extra_k, extra_v, mask, extra_mask, sees, dq, dk, dv, d_extra_k, d_extra_v, heads, n, scale, root,
    extra_b, extra_h, dy_b, dy_h, dy_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t,
    dq_b, dq_h, dq_t, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t,
    c: tl.constexpr, C: tl.constexpr, e: tl.constexpr, E: tl.constexpr, S: tl.constexpr, T: tl.constexpr,
    j: tl.constexpr, J: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, EXTRA_MASKED: tl.constexpr,
    SOME_SEE: tl.constexpr,
):  # fmt: skip
    row, head, tokens, there, extra, exists = _own(heads, n, S, T, j, J)
    query, keys, extra_keys, p, extra_p = _weights(
        of(q, row, head, q_b, q_h), of(k, row, head, k_b, k_h), extra_k, q_t, k_t, mask, extra_mask, sees, row, head,
        tokens, there, extra, exists, n, scale, extra_b, extra_h, c, C, T, j, J, CAUSAL, MASKED, EXTRA_MASKED, SOME_SEE,
    )  # fmt: skip
    grad = load(of(dy, row, head, dy_b, dy_h), tokens, dy_t, there, e, E)  # [T, E]
    store(of(dv, row, head, dv_b, dv_h), _transposed_dot(p, grad), tokens, dv_t, there, e, E)
    store(d_extra_v, _transposed_dot(extra_p, grad), extra, e, exists, e, E)

    values = load(of(v, row, head, v_b, v_h), tokens, v_t, there, e, E)
    extra_values = load(extra_v, extra, e, exists, e, E)
    g = dot(grad, tl.trans(values), tl.zeros([T, T], tl.float32))
    extra_g = dot(grad, tl.trans(extra_values), tl.zeros([T, J], tl.float32))
    delta = tl.sum(p * g, axis=1) + tl.sum(extra_p * extra_g, axis=1)
    ds = (p * (g - delta[:, None])).to(query.dtype)
    extra_ds = (extra_p * (extra_g - delta[:, None])).to(query.dtype)
    store(of(dk, row, head, dk_b, dk_h), _transposed_dot(ds, query) * root, tokens, dk_t, there, c, C)
    store(d_extra_k, _transposed_dot(extra_ds, query) * root, extra, c, exists, c, C)
    sums = dot(extra_ds, extra_keys, dot(ds, keys, tl.zeros([T, C], tl.float32)))
    store(of(dq, row, head, dq_b, dq_h), sums * root, tokens, dq_t, there, c, C)


@triton.jit
@no_type_check
def _own(heads, n, S: tl.constexpr, T: tl.constexpr, j: tl.constexpr, J: tl.constexpr):
    """Row and head of this program, its tokens, the places of its extra keys among all, and which of these exist."""
    block, pair = tl.program_id(0), tl.program_id(1)
    at, beside = tl.arange(0, T), tl.arange(0, J)
    tokens = block * S + at
    extra = (pair.to(tl.int64) * tl.num_programs(0) + block) * j + beside
    return pair // heads, pair % heads, tokens, (at < S) & (tokens < n), extra, beside < j


@triton.jit
@no_type_check
def _weights(
    q, k, extra_k, q_t, k_t, mask, extra_mask, sees, row, head, tokens, there, extra, exists, n, scale, extra_b,
    extra_h, c: tl.constexpr, C: tl.constexpr, T: tl.constexpr, j: tl.constexpr, J: tl.constexpr, CAUSAL: tl.constexpr,
    MASKED: tl.constexpr, EXTRA_MASKED: tl.constexpr, SOME_SEE: tl.constexpr,
):  # fmt: skip
    """Queries and keys; the weights of own keys [T, T] and of extra ones [T, J], 0 where a query does not see one."""
    query, keys = load(q, tokens, q_t, there, c, C), load(k, tokens, k_t, there, c, C)  # [T, C]
    extra_keys = load(extra_k, extra, c, exists, c, C)  # [J, C]
    real = there
    if MASKED:
        real = there & visible(mask + row.to(tl.int64) * n, tokens, n, True)
    seen = tl.broadcast_to(real[None, :], [T, T])
    if CAUSAL:
        seen = seen & (tokens[None, :] <= tokens[:, None])
    extra_real = visible(
        of(extra_mask, row, head, extra_b, extra_h) + tl.program_id(0) * j if EXTRA_MASKED else extra_mask,
        tl.arange(0, J), j, EXTRA_MASKED,
    )  # fmt: skip
    extra_seen = tl.broadcast_to(extra_real[None, :], [T, J])
    if SOME_SEE:
        extra_seen &= visible(sees + row.to(tl.int64) * n, tokens, n, True)[:, None]

    s = dot(query, tl.trans(keys), tl.zeros([T, T], tl.float32)) * scale
    extra_s = dot(query, tl.trans(extra_keys), tl.zeros([T, J], tl.float32)) * scale
    s, extra_s = tl.where(seen, s, float("-inf")), tl.where(extra_seen, extra_s, float("-inf"))
    top = tl.maximum(tl.max(s, axis=1), tl.max(extra_s, axis=1))
    top = tl.where(top == float("-inf"), 0.0, top)[:, None]  # of a query that sees nothing
    p, extra_p = tl.exp2(s - top), tl.exp2(extra_s - top)
    total = tl.sum(p, axis=1) + tl.sum(extra_p, axis=1)
    share = (1 / tl.where(total > 0, total, 1.0))[:, None]
    return query, keys, extra_keys, p * share, extra_p * share


@triton.jit
@no_type_check
def _transposed_dot(weights, rows):
    """weights^T rows."""
    nothing = tl.zeros([weights.shape[1], rows.shape[1]], tl.float32)
    return dot(tl.trans(weights.to(rows.dtype)), rows, nothing)
