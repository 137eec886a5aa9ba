"""The LSTM as a torch operator, by Triton or by the reference, and how its Triton programs are launched."""

import math

import torch
from torch import Tensor

from longspan.kernels.launch import next_power_of_2
from longspan.kernels.lstm import reference
from longspan.kernels.operator import differentiate, operator

NUMBERS = 4096  # elements of the matrix per warp, 128 per thread


def _empty(z: Tensor, recurrent: Tensor, by_triton: bool) -> tuple[Tensor, Tensor]:
    (b, n, _), r = z.shape, recurrent.shape[1]
    return z.new_empty(b, n, r), z.new_empty(b, n, 5 * r)


@operator("lstm", fake=_empty, flops=lambda z, recurrent, by_triton: 2 * math.prod(z) * recurrent[1])
def forward(z: Tensor, recurrent: Tensor, by_triton: bool) -> tuple[Tensor, Tensor]:
    """h [b n r]; and for the backward pass c, i, f, g, o side by side [b n 5r]."""
    if not by_triton:
        return reference.forward(z, recurrent)
    from longspan.kernels.lstm import triton

    h, kept = _empty(z, recurrent, by_triton)
    with torch.cuda.device_of(z):  # Triton launches on the current device
        triton.forward[(len(z),)](z.contiguous(), recurrent.contiguous(), h, kept, z.shape[1], **_launch(recurrent))
    return h, kept


@operator(
    "lstm_backward",
    fake=lambda dh, kept, recurrent, by_triton: dh.new_empty(*dh.shape[:2], recurrent.shape[0]),
    flops=lambda dh, kept, recurrent, by_triton: 2 * math.prod(dh[:2]) * math.prod(recurrent),
)
def backward(dh: Tensor, kept: Tensor, recurrent: Tensor, by_triton: bool) -> Tensor:
    """The gradient of z."""
    if not by_triton:
        return reference.backward(dh, kept, recurrent)
    from longspan.kernels.lstm import triton

    dh, kept, recurrent = dh.contiguous(), kept.contiguous(), recurrent.contiguous()
    dz = dh.new_empty(*dh.shape[:2], len(recurrent))
    with torch.cuda.device_of(dh):
        triton.backward[(len(dh),)](dh, kept, recurrent, dz, dh.shape[1], **_launch(recurrent))
    return dz


def _launch(recurrent: Tensor) -> dict[str, int]:
    r, R = recurrent.shape[1], next_power_of_2(recurrent.shape[1])
    return {"r": r, "R": R, "num_warps": max(1, 4 * R * R // NUMBERS)}


def _gradients(
    dh: Tensor, h: Tensor, kept: Tensor, z: None, recurrent: Tensor, by_triton: bool
) -> tuple[Tensor, Tensor]:
    dz = backward(dh, kept, recurrent, by_triton)
    return dz, dz[:, 1:].flatten(0, 1).mT @ h[:, :-1].flatten(0, 1)  # a gate of one token with the state before it


differentiate(forward, _gradients, unneeded=(0,))
