"""The Triton kernels as one operator of torch with its gradient, which torch.compile takes into its graph unopened.

Signatures of operators are read by torch, which knows tensors but no shapes; those of `ragged_linear` say them.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longspan.kernels.flops import counts


def ragged_linear(
    q: Float[Tensor, "n h r"],
    k: Float[Tensor, "t h r"],
    v: Float[Tensor, "t h e"],
    query_cu_seqlens: Int[Tensor, " b_plus_1"],
    key_offsets: Int[Tensor, " b_plus_1"],
    max_query_seqlen: int,
    longest_key: int,
    elu: bool,
    eps: float,
) -> Float[Tensor, "n h e"]:
    return forward(q, k, v, query_cu_seqlens, key_offsets, max_query_seqlen, longest_key, elu, eps)[0]


@torch.library.custom_op("longspan::ragged_linear", mutates_args=())
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_cu_seqlens: Tensor,
    key_offsets: Tensor,
    max_query_seqlen: int,
    longest_key: int,
    elu: bool,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """y, and for the way back the sums of every row and head [b h e+1 r], S above z."""
    from longspan.kernels.ragged_linear import triton

    q, k, v, query_cu_seqlens, key_offsets = (x.contiguous() for x in (q, k, v, query_cu_seqlens, key_offsets))
    with torch.cuda.device_of(q):  # Triton launches on the current device
        sums = triton.sum_keys(k, v, key_offsets, longest_key, elu)
        return triton.read(q, sums, query_cu_seqlens, max_query_seqlen, elu, eps), sums


@forward.register_fake
def _(q, k, v, query_cu_seqlens, key_offsets, max_query_seqlen, longest_key, elu, eps):
    rows, heads, r, e = key_offsets.shape[0] - 1, *k.shape[1:], v.shape[2]
    return v.new_empty(q.shape[0], heads, e), v.new_empty(rows, heads, e + 1, r, dtype=torch.float32)


@torch.library.custom_op("longspan::ragged_linear_backward", mutates_args=())
def backward(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sums: Tensor,
    query_cu_seqlens: Tensor,
    key_offsets: Tensor,
    max_query_seqlen: int,
    longest_key: int,
    elu: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    from longspan.kernels.ragged_linear import triton

    dy, q, k, v, sums = (x.contiguous() for x in (dy, q, k, v, sums))
    with torch.cuda.device_of(q):
        dq, dsums = triton.back_to_queries(dy, q, sums, query_cu_seqlens.contiguous(), max_query_seqlen, elu, eps)
        dk, dv = triton.back_to_keys(k, v, dsums, key_offsets.contiguous(), longest_key, elu)
    return dq, dk, dv


@backward.register_fake
def _(dy, q, k, v, sums, query_cu_seqlens, key_offsets, max_query_seqlen, longest_key, elu, eps):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _remember(ctx, inputs, output) -> None:
    q, k, v, query_cu_seqlens, key_offsets, *ctx.rest = inputs
    ctx.save_for_backward(q, k, v, output[1], query_cu_seqlens, key_offsets)
    ctx.set_materialize_grads(False)  # nobody differentiates the sums


def _gradients(ctx, dy, _):
    gradients = backward(dy, *ctx.saved_tensors, *ctx.rest)
    return (*gradients, *[None] * (2 + len(ctx.rest)))


forward.register_autograd(_gradients, setup_context=_remember)


@counts(torch.ops.longspan.ragged_linear)
def _ragged_linear(q: Any, k: Any, v: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """Every key into the sums, every query against them; the sums have a column more, the denominator."""
    return 2 * (k[0] + q[0]) * q[1] * q[2] * (v[2] + 1)


@counts(torch.ops.longspan.ragged_linear_backward)
def _ragged_linear_back(dy: Any, q: Any, k: Any, v: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return 2 * _ragged_linear(q, k, v)
