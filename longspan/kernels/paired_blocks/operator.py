"""The Triton kernels as one operator of torch with its gradient, which torch.compile takes into its graph unopened.

Signatures of operators are read by torch, which knows tensors but no shapes; those of `paired_blocks` say them.
"""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.flops import counts
from longspan.kernels.launch import as_bytes, empty_like, readable


@torch.library.custom_op("longspan::paired_blocks", mutates_args=())
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    other_k: Tensor,
    other_v: Tensor,
    key_mask: Tensor | None,
    other_mask: Tensor | None,
    begun: Tensor | None,
    block: int,
    causal: bool,
) -> Tensor:
    from longspan.kernels.paired_blocks import triton

    rule = triton.Rule(block, causal, *map(as_bytes, (key_mask, other_mask, begun)))
    q, k, v = map(readable, (q, k, v))
    with torch.cuda.device_of(q):  # Triton launches on the current device
        return triton.forth(q, k, v, other_k.contiguous(), other_v.contiguous(), rule)


@forward.register_fake
def _(q, k, v, other_k, other_v, key_mask, other_mask, begun, block, causal):
    return empty_like(q, v.shape[3], v.dtype)


@torch.library.custom_op("longspan::paired_blocks_backward", mutates_args=())
def backward(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    other_k: Tensor,
    other_v: Tensor,
    key_mask: Tensor | None,
    other_mask: Tensor | None,
    begun: Tensor | None,
    block: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v, and of the other keys and values."""
    from longspan.kernels.paired_blocks import triton

    rule = triton.Rule(block, causal, *map(as_bytes, (key_mask, other_mask, begun)))
    dy, q, k, v = map(readable, (dy, q, k, v))
    with torch.cuda.device_of(q):
        return triton.back(dy, q, k, v, other_k.contiguous(), other_v.contiguous(), rule)


@backward.register_fake
def _(dy, q, k, v, other_k, other_v, *rest):
    others = (x.new_empty(x.shape) for x in (other_k, other_v))
    return *(empty_like(x, x.shape[3], x.dtype) for x in (q, k, v)), *others


def _remember(ctx, inputs, output) -> None:
    *tensors, ctx.block, ctx.causal = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx, dy):
    return (*backward(dy, *ctx.saved_tensors, ctx.block, ctx.causal), *[None] * 5)


forward.register_autograd(_gradients, setup_context=_remember)


@counts(torch.ops.longspan.paired_blocks)
def _paired_blocks(q: Any, k: Any, v: Any, other_k: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """The pairs of both blocks, whether or not they are seen: a product of c channels and one of e for each."""
    (*pairs, n, c), e, block = q, v[3], rest[-2]
    return 2 * math.prod(pairs) * (c + e) * n * (block + other_k[3])


@counts(torch.ops.longspan.paired_blocks_backward)
def _paired_blocks_back(dy: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """The scores again, and four more products."""
    (*pairs, n, c), e, j, block = rest[0], rest[2][3], rest[3][3], rest[-2]
    return 2 * math.prod(pairs) * (3 * c + 2 * e) * n * (block + j)
