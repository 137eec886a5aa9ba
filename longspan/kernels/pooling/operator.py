"""Pooling as torch operators."""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.launch import as_bytes, readable
from longspan.kernels.operator import differentiate, like, operator


@operator(
    "normed_means",
    fake=lambda x, weight, bias, mask, begins, segments, eps: weight.new_empty(*x.shape[:2], segments, x.shape[3]),
    flops=lambda x, *rest: 2 * math.prod(x) * x[3],
)
def normed_means(
    x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None, begins: Tensor | None, segments: int, eps: float
) -> Tensor:
    """The means; with a mask goes [b r+1], where the segments of each row begin."""
    from longspan.kernels.pooling import triton

    few = (weight.contiguous(), bias.contiguous())
    with torch.cuda.device_of(x):  # Triton launches on the current device
        return triton.normed_means(readable(x), *few, as_bytes(mask), begins, segments, eps)


@operator(
    "normed_means_backward",
    fake=lambda dmeans, x, weight, *rest: (*like(x), weight.new_empty(x.shape[3], x.shape[3] + 1)),
    flops=lambda dmeans, x, *rest: 6 * math.prod(x) * x[3],
)
def normed_means_backward(
    dmeans: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None, begins: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """dx, and the gradients of weight and, as one more column, of bias."""
    from longspan.kernels.pooling import triton

    (dx,), few = like(x), (weight.contiguous(), bias.contiguous())
    with torch.cuda.device_of(x):
        return dx, triton.normed_means_backward(dmeans.contiguous(), readable(x), *few, as_bytes(mask), begins, eps, dx)


def _normed_gradients(dmeans: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    *tensors, _, eps = inputs
    dx, dboth = normed_means_backward(dmeans, *tensors, eps)
    return dx, dboth[:, :-1], dboth[:, -1]


differentiate(normed_means, _normed_gradients)


def _run(x: Tensor, mask: Tensor | None, *, backward: bool) -> Tensor:
    from longspan.kernels.pooling import triton

    x = readable(x)
    with torch.cuda.device_of(x):
        return triton.running_mean(x, None if mask is None else mask.contiguous(), backward)


@operator("running_mean", fake=lambda x, mask: like(x)[0], flops=lambda x, mask: math.prod(x))
def running_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    return _run(x, mask, backward=False)


@operator("running_mean_backward", fake=lambda dy, x, mask: like(dy)[0], flops=lambda dy, x, mask: math.prod(dy))
def running_mean_backward(dy: Tensor, x: Tensor | None, mask: Tensor | None) -> Tensor:
    return _run(dy, mask, backward=True)


differentiate(running_mean, running_mean_backward, unneeded=(0,))
