"""The Triton kernels as one operator of torch with its gradient, which torch.compile takes into its graph unopened.

Signatures of operators are read by torch, which knows tensors but no shapes; those of `lsh_attention` say them. `order`
sorts the tokens of every round by bucket, `bucket` are their buckets in that order.
"""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.flops import counts


@torch.library.custom_op("longspan::lsh_attention", mutates_args=())
def forward(
    z: Tensor, v: Tensor, order: Tensor, bucket: Tensor, left: int, right: int, scale: float
) -> tuple[Tensor, Tensor]:
    """y, and for the way back the logarithm of the sum of each token over all rounds [b h n]."""
    from longspan.kernels.lsh_attention import triton

    z, v = map(_by_token, (z, v))
    with torch.cuda.device_of(z):  # Triton launches on the current device
        y, log_sum = triton.attend(z, v, order.contiguous(), bucket.contiguous(), left, right, scale)
    return y.transpose(1, 2), log_sum


@forward.register_fake
def _(z, v, order, bucket, left, right, scale):
    return _empty_like(v), z.new_empty(z.shape[:3], dtype=torch.float32)


@torch.library.custom_op("longspan::lsh_attention_backward", mutates_args=())
def backward(
    dy: Tensor,
    y: Tensor,
    log_sum: Tensor,
    z: Tensor,
    v: Tensor,
    order: Tensor,
    bucket: Tensor,
    left: int,
    right: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The gradients of z and v."""
    from longspan.kernels.lsh_attention import triton

    dy, y, z, v = map(_by_token, (dy, y, z, v))
    sorting = order.contiguous(), bucket.contiguous()
    with torch.cuda.device_of(z):
        dz, dv = triton.back(dy, y, log_sum.contiguous(), z, v, *sorting, left, right, scale)
    return dz.transpose(1, 2), dv.transpose(1, 2)


@backward.register_fake
def _(dy, y, log_sum, z, v, order, bucket, left, right, scale):
    return _empty_like(z), _empty_like(v)


def _by_token(x: Tensor) -> Tensor:
    """[b n h c] of [b h n c], which is no copy where a projection has made it."""
    return x.transpose(1, 2).contiguous()


def _empty_like(x: Tensor) -> Tensor:
    b, h, n, c = x.shape
    return x.new_empty(b, n, h, c).transpose(1, 2)


def _remember(ctx, inputs, output) -> None:
    z, v, order, bucket, *ctx.rest = inputs
    ctx.save_for_backward(*output, z, v, order, bucket)
    ctx.set_materialize_grads(False)  # nobody differentiates the sums


def _gradients(ctx, dy, _):
    return (*backward(dy, *ctx.saved_tensors, *ctx.rest), *[None] * 5)


forward.register_autograd(_gradients, setup_context=_remember)


@counts(torch.ops.longspan.lsh_attention)
def _lsh_attention(z: Any, v: Any, order: Any, bucket: Any, left: int, right: int, *rest: Any, **options: Any) -> int:
    """Two products of every token with as many others as its window may hold, in every round."""
    return 2 * math.prod(order) * min(left + right, order[3] - 1) * (z[3] + v[3])


@counts(torch.ops.longspan.lsh_attention_backward)
def _lsh_attention_back(dy: Any, y: Any, log_sum: Any, z: Any, v: Any, *rest: Any, **options: Any) -> int:
    """The scores again, and four more."""
    return _lsh_attention(z, v, *rest) * (3 * z[3] + 2 * v[3]) // (z[3] + v[3])
