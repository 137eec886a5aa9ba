"""The Triton kernels as one operator of torch with its gradient, which torch.compile takes into its graph unopened.

Signatures of operators are read by torch, which knows tensors but no shapes; those of `running_mean` say them.
"""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.flops import counts
from longspan.kernels.launch import empty_like, readable


@torch.library.custom_op("longspan::running_mean", mutates_args=())
def forward(x: Tensor, mask: Tensor | None) -> Tensor:
    return _run(x, mask, back=False)


@torch.library.custom_op("longspan::running_mean_backward", mutates_args=())
def backward(dy: Tensor, mask: Tensor | None) -> Tensor:
    return _run(dy, mask, back=True)


def _run(x: Tensor, mask: Tensor | None, *, back: bool) -> Tensor:
    from longspan.kernels.running_mean import triton

    x = readable(x)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        return triton.running_mean(x, None if mask is None else mask.contiguous(), back)


def _like(x, mask):
    return empty_like(x, x.shape[3], x.dtype)


forward.register_fake(_like)
backward.register_fake(_like)


def _remember(ctx, inputs, output) -> None:
    ctx.save_for_backward(inputs[1])


def _gradients(ctx, dy):
    return backward(dy, *ctx.saved_tensors), None


forward.register_autograd(_gradients, setup_context=_remember)


@counts(torch.ops.longspan.running_mean)
def _operations(x: Any, *rest: Any, **options: Any) -> int:
    return math.prod(x)


@counts(torch.ops.longspan.running_mean_backward)
def _back(x: Any, *rest: Any, **options: Any) -> int:
    return math.prod(x)
