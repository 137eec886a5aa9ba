"""The pseudo-inverse as a torch operator, and how its Triton programs are launched."""

import math

import torch
from torch import Tensor

from longspan.kernels.launch import next_power_of_2
from longspan.kernels.operator import differentiate, operator

LAUNCH = {"num_warps": 4, "num_stages": 1}


@operator(
    "pseudo_inverse",
    fake=lambda a, start, iterations: (a.new_empty(a.shape), a.new_empty(iterations, *a.shape)),
    flops=lambda a, start, iterations: 4 * iterations * 2 * math.prod(a) * a[-1],
)
def forward(a: Tensor, start: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """The last Z, and for the backward pass all earlier ones [iterations b h r r]."""
    from longspan.kernels.pseudo_inverse import triton

    a, (b, h, r, _) = a.contiguous(), a.shape
    z, steps = torch.empty_like(a), a.new_empty(iterations, *a.shape)
    with torch.cuda.device_of(a):  # Triton launches on the current device
        triton.forward[(b * h,)](a, start.contiguous(), z, steps, iterations, r=r, R=next_power_of_2(r), **LAUNCH)
    return z, steps


@operator(
    "pseudo_inverse_backward",
    fake=lambda dz, steps, a, *rest: (a.new_empty(a.shape), a.new_empty(a.shape)),
    flops=lambda dz, steps, a, *rest: 11 * steps[0] * 2 * math.prod(a) * a[-1],  # three again, two for each of four
)
def backward(dz: Tensor, steps: Tensor, a: Tensor, start: Tensor | None, iterations: int) -> tuple[Tensor, Tensor]:
    """The gradients of A and of Z_0."""
    from longspan.kernels.pseudo_inverse import triton

    (b, h, r, _), dz, steps, a = a.shape, dz.contiguous(), steps.contiguous(), a.contiguous()
    da, dstart = torch.empty_like(a), torch.empty_like(a)
    with torch.cuda.device_of(a):
        triton.backward[(b * h,)](dz, a, steps, da, dstart, iterations, r=r, R=next_power_of_2(r), **LAUNCH)
    return da, dstart


differentiate(forward, backward, saved=(1,), unneeded=(1,))
