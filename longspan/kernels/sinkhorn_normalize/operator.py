"""Sinkhorn normalisation as a torch operator."""

import torch
from torch import Tensor

from longspan.kernels.operator import differentiate, operator


def _empty(x: Tensor, allowed: Tensor, iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    (b, h, u, v), i = x.shape, iterations
    return x.new_empty(x.shape), x.new_empty(i, b, h, u), x.new_empty(i, b, h, v)


@operator("sinkhorn_normalize", fake=_empty)
def forward(x: Tensor, allowed: Tensor, iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    """S; and for the backward pass r and c of every iteration, [i b h u] and [i b h v]."""
    from longspan.kernels.sinkhorn_normalize import triton

    with torch.cuda.device_of(x):  # Triton launches on the current device
        return triton.forward(x.contiguous(), allowed.contiguous().view(torch.uint8), iterations)


@operator("sinkhorn_normalize_backward", fake=lambda ds, s, rows, columns, x, allowed, iterations: x.new_empty(x.shape))
def backward(
    ds: Tensor, s: Tensor, rows: Tensor, columns: Tensor, x: Tensor, allowed: Tensor, iterations: int
) -> Tensor:
    from longspan.kernels.sinkhorn_normalize import triton

    allowed = allowed.contiguous().view(torch.uint8)
    with torch.cuda.device_of(x):
        return triton.backward((ds * s).contiguous(), x.contiguous(), allowed, rows.contiguous(), columns)


differentiate(forward, backward)
