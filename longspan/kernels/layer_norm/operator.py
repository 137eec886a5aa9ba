"""The layer norm as a torch operator, and how its Triton programs are launched."""

import torch
from torch import Tensor

from longspan.kernels.launch import ceil, next_power_of_2
from longspan.kernels.operator import differentiate, operator

TILE = 2_048  # elements, unless a single token has more
PROGRAMS = 1_024  # in the backward pass; a GPU holds about as many at once


@operator("layer_norm", fake=lambda x, *rest: x.new_empty(x.shape))
def forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    from longspan.kernels.layer_norm import triton

    x, (rows, launch) = x.contiguous(), _launch(x)
    y = torch.empty_like(x)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        triton.forward[(ceil(rows, launch["T"]),)](x, weight.contiguous(), bias.contiguous(), y, rows, eps, **launch)
    return y


@operator(
    "layer_norm_backward",
    fake=lambda dy, x, *rest: (x.new_empty(x.shape), x.new_empty(2, x.shape[-1], dtype=torch.float32)),
)
def backward(dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The gradient of x, and those of weight and bias [2 d] in float32."""
    from longspan.kernels.layer_norm import triton

    x, (rows, launch) = x.contiguous(), _launch(x)
    tiles, dx = ceil(rows, launch["T"]), torch.empty_like(x)
    programs = ceil(tiles, ceil(tiles, PROGRAMS))
    share = ceil(tiles, programs) * launch["T"]
    sums = x.new_empty(programs, 2, x.shape[-1], dtype=torch.float32)
    with torch.cuda.device_of(x):
        triton.backward[(programs,)](dy.contiguous(), x, weight.contiguous(), dx, sums, rows, share, eps, **launch)
    return dx, sums.sum(dim=0)


def _launch(x: Tensor) -> tuple[int, dict[str, int]]:
    """How many tokens there are, and the constants of a launch."""
    d, D = x.shape[-1], next_power_of_2(x.shape[-1])
    return x.numel() // d, {"d": d, "D": D, "T": max(1, TILE // D), "num_warps": 4 if D <= TILE else 8}


def _gradients(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    dx, (dweight, dbias) = backward(dy, x, weight, eps)
    return dx, dweight.to(weight.dtype), dbias.to(bias.dtype)


differentiate(forward, _gradients)
