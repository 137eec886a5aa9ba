"""The Triton kernels as one operator of torch with its gradient, which torch.compile takes into its graph unopened.

Signatures of operators are read by torch, which knows tensors but no shapes; those of `near_far` say them. A `chunk` of
0 lets all queries see all far keys.
"""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.flops import counts
from longspan.kernels.launch import as_bytes, empty_like, readable


@torch.library.custom_op("longspan::near_far", mutates_args=())
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    far_k: Tensor,
    far_v: Tensor,
    key_mask: Tensor | None,
    step: int,
    left: int,
    right: int,
    chunk: int,
    rank: int,
) -> tuple[Tensor, Tensor]:
    """y, and the logarithm of what each query divides by [b h n], for the way back."""
    from longspan.kernels.near_far import triton

    q, k, v, far_k, far_v = map(readable, (q, k, v, far_k, far_v))
    with torch.cuda.device_of(q):  # Triton launches on the current device
        return triton.forth(q, k, v, far_k, far_v, as_bytes(key_mask), triton.Rule(step, left, right, chunk, rank))


@forward.register_fake
def _(q, k, v, far_k, far_v, key_mask, step, left, right, chunk, rank):
    return empty_like(q, q.shape[3], q.dtype), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("longspan::near_far_backward", mutates_args=())
def backward(
    dy: Tensor,
    y: Tensor,
    log: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    far_k: Tensor,
    far_v: Tensor,
    key_mask: Tensor | None,
    step: int,
    left: int,
    right: int,
    chunk: int,
    rank: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v, far_k and far_v."""
    from longspan.kernels.near_far import triton

    dy, y, q, k, v, far_k, far_v = map(readable, (dy, y, q, k, v, far_k, far_v))
    log, mask, rule = log.contiguous(), as_bytes(key_mask), triton.Rule(step, left, right, chunk, rank)
    with torch.cuda.device_of(q):
        dq, through = triton.back_to_queries(dy, y, log, q, k, v, far_k, far_v, mask, rule)
        near = triton.back_to_near(dy, log, through, q, k, v, mask, rule)
        return dq, *near, *triton.back_to_far(dy, log, through, q, far_k, far_v, rule)


@backward.register_fake
def _(dy, y, log, q, k, v, far_k, far_v, *rest):
    far = (x.new_empty(x.shape) for x in (far_k, far_v))
    return *(empty_like(x, x.shape[3], x.dtype) for x in (q, k, v)), *far


def _remember(ctx, inputs, output) -> None:
    *tensors, ctx.step, ctx.left, ctx.right, ctx.chunk, ctx.rank = inputs
    ctx.save_for_backward(*output, *tensors)
    ctx.set_materialize_grads(False)  # nobody differentiates the logarithms


def _gradients(ctx, dy, _):
    rule = ctx.step, ctx.left, ctx.right, ctx.chunk, ctx.rank
    return (*backward(dy, *ctx.saved_tensors, *rule), *[None] * 6)


forward.register_autograd(_gradients, setup_context=_remember)


@counts(torch.ops.longspan.near_far)
def _near_far(q: Any, k: Any, v: Any, far_k: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """The pairs that are seen, two products each; near ones block by block, far ones chunk by chunk."""
    (*pairs, n, c), f, (step, left, right, chunk, rank) = q, far_k[2], rest[-5:]
    near = sum(
        (min(block + step, n) - block) * (min(block + step + right, n) - max(block - left, 0))
        for block in range(0, n, step)
    )
    far = (
        sum((min(start + chunk, n) - start) * (start // chunk * rank) for start in range(0, n, chunk))
        if chunk
        else n * f
    )
    return 4 * math.prod(pairs) * c * (near + far)


@counts(torch.ops.longspan.near_far_backward)
def _near_far_back(dy: Any, y: Any, log: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """The scores again, and four more products."""
    return _near_far(*rest) // 2 * 5
