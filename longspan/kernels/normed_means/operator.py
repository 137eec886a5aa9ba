"""The Triton kernels as one operator of torch with its gradient, which torch.compile takes into its graph unopened.

Signatures of operators are read by torch, which knows tensors but no shapes; those of `normed_means` say them.
"""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.flops import counts
from longspan.kernels.launch import as_bytes, empty_like, readable


@torch.library.custom_op("longspan::normed_means", mutates_args=())
def forward(
    x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None, begins: Tensor | None, segments: int, eps: float
) -> Tensor:
    """The means; with a mask goes [b r+1], where the segments of each row begin."""
    from longspan.kernels.normed_means import triton

    few = (weight.contiguous(), bias.contiguous())
    with torch.cuda.device_of(x):  # Triton launches on the current device
        return triton.means(readable(x), *few, as_bytes(mask), begins, segments, eps)


@forward.register_fake
def _(x, weight, bias, mask, begins, segments, eps):
    b, h, _, c = x.shape
    return weight.new_empty(b, h, segments, c)


@torch.library.custom_op("longspan::normed_means_backward", mutates_args=())
def backward(
    dmeans: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None, begins: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """dx, and the gradients of weight and, as one more column, of bias."""
    from longspan.kernels.normed_means import triton

    dx, few = empty_like(x, x.shape[3], x.dtype), (weight.contiguous(), bias.contiguous())
    with torch.cuda.device_of(x):
        return dx, triton.back(readable(x), *few, as_bytes(mask), begins, eps, dmeans.contiguous(), dx)


@backward.register_fake
def _(dmeans, x, weight, bias, mask, begins, eps):
    c = x.shape[3]
    return empty_like(x, c, x.dtype), weight.new_empty(c, c + 1)


def _remember(ctx, inputs, output) -> None:
    *tensors, _, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx, dmeans):
    dx, dboth = backward(dmeans, *ctx.saved_tensors, ctx.eps)
    return dx, dboth[:, :-1], dboth[:, -1], None, None, None, None


forward.register_autograd(_gradients, setup_context=_remember)


@counts(torch.ops.longspan.normed_means)
def _normed_means(x: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return 2 * math.prod(x) * x[3]


@counts(torch.ops.longspan.normed_means_backward)
def _normed_means_back(dmeans: Any, x: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return 3 * _normed_means(x)
