"""The running mean as a torch operator."""

import math

import torch
from torch import Tensor

from longspan.kernels.launch import readable
from longspan.kernels.operator import differentiate, like, operator


def _run(x: Tensor, mask: Tensor | None, *, backward: bool) -> Tensor:
    from longspan.kernels.running_mean import triton

    x = readable(x)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        return triton.running_mean(x, None if mask is None else mask.contiguous(), backward)


@operator("running_mean", fake=lambda x, mask: like(x)[0], flops=lambda x, mask: math.prod(x))
def forward(x: Tensor, mask: Tensor | None) -> Tensor:
    return _run(x, mask, backward=False)


@operator("running_mean_backward", fake=lambda dy, x, mask: like(dy)[0], flops=lambda dy, x, mask: math.prod(dy))
def backward(dy: Tensor, x: Tensor | None, mask: Tensor | None) -> Tensor:
    return _run(dy, mask, backward=True)


differentiate(forward, backward, unneeded=(0,))
