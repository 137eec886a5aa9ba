"""The pseudo-inverse as a torch operator."""

import math

import torch
from torch import Tensor

from longspan.kernels.operator import differentiate, operator


@operator(
    "pseudo_inverse",
    fake=lambda a, start, iterations: (a.new_empty(a.shape), a.new_empty(iterations, *a.shape)),
    flops=lambda a, start, iterations: 4 * iterations * 2 * math.prod(a) * a[-1],
)
def forward(a: Tensor, start: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """The last Z, and for the backward pass all before it [iterations b h r r]."""
    from longspan.kernels.pseudo_inverse import triton

    with torch.cuda.device_of(a):  # Triton launches on the current device
        return triton.invert(a.contiguous(), start.contiguous(), iterations)


@operator(
    "pseudo_inverse_backward",
    fake=lambda dz, steps, a, *rest: (a.new_empty(a.shape), a.new_empty(a.shape)),
    flops=lambda dz, steps, a, *rest: 11 * steps[0] * 2 * math.prod(a) * a[-1],  # three again, and two for each of four
)
def backward(dz: Tensor, steps: Tensor, a: Tensor, start: Tensor | None, iterations: int) -> tuple[Tensor, Tensor]:
    """The gradients of A and of Z_0."""
    from longspan.kernels.pseudo_inverse import triton

    with torch.cuda.device_of(a):
        return triton.backward(dz.contiguous(), a.contiguous(), steps.contiguous())


differentiate(forward, backward, saved=(1,), unneeded=(1,))
