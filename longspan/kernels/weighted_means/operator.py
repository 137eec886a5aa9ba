"""The Triton kernels as one operator of torch with its gradient, which torch.compile takes into its graph unopened.

Signatures of operators are read by torch, which knows tensors but no shapes; those of `weighted_means` say them.
"""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.flops import counts
from longspan.kernels.launch import as_bytes, empty_like, readable


@torch.library.custom_op("longspan::weighted_means", mutates_args=())
def forward(a: Tensor, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The means, and the logarithm of what each divides by [b h r], for the way back."""
    from longspan.kernels.weighted_means import triton

    with torch.cuda.device_of(x):  # Triton launches on the current device
        return triton.means(readable(a), readable(x), as_bytes(mask))


@forward.register_fake
def _(a, x, mask):
    (b, h, _, c), r = x.shape, a.shape[3]
    return x.new_empty(b, h, r, c), x.new_empty(b, h, r, dtype=torch.float32)


@torch.library.custom_op("longspan::weighted_means_backward", mutates_args=())
def backward(ds: Tensor, s: Tensor, log: Tensor, a: Tensor, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients of a and x."""
    from longspan.kernels.weighted_means import triton

    through = (ds.float() * s.float()).sum(dim=-1)
    with torch.cuda.device_of(x):
        return triton.back(ds.contiguous(), through, log.contiguous(), readable(a), readable(x), as_bytes(mask))


@backward.register_fake
def _(ds, s, log, a, x, mask):
    return empty_like(a, a.shape[3], a.dtype), empty_like(x, x.shape[3], x.dtype)


def _remember(ctx, inputs, output) -> None:
    ctx.save_for_backward(*output, *inputs)
    ctx.set_materialize_grads(False)  # nobody differentiates the logarithms


def _gradients(ctx, ds, _):
    return (*backward(ds, *ctx.saved_tensors), None)


forward.register_autograd(_gradients, setup_context=_remember)


@counts(torch.ops.longspan.weighted_means)
def _weighted_means(a: Any, x: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return 2 * math.prod(x) * a[3]


@counts(torch.ops.longspan.weighted_means_backward)
def _weighted_means_back(ds: Any, s: Any, log: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return 2 * _weighted_means(*rest)
