"""Softmax pooling as a torch operator."""

import math

import torch
from torch import Tensor

from longspan.kernels.launch import as_bytes, readable
from longspan.kernels.operator import differentiate, like, operator


def _empty(a: Tensor, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    (b, h, _, c), r = x.shape, a.shape[3]
    return x.new_empty(b, h, r, c), x.new_empty(b, h, r, dtype=torch.float32)


@operator("softmax_pooling", fake=_empty, flops=lambda a, x, mask: 2 * math.prod(x) * a[3])
def forward(a: Tensor, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The means, and the log-sum-exp of the logits of each [b h r], for the backward pass."""
    from longspan.kernels.softmax_pooling import triton

    with torch.cuda.device_of(x):  # Triton launches on the current device
        return triton.forward(readable(a), readable(x), as_bytes(mask))


@operator(
    "softmax_pooling_backward",
    fake=lambda ds, s, lse, a, x, mask: like(a, x),
    flops=lambda ds, s, lse, a, x, mask: 4 * math.prod(x) * a[3],
)
def backward(ds: Tensor, s: Tensor, lse: Tensor, a: Tensor, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients of a and x."""
    from longspan.kernels.softmax_pooling import triton

    delta = (ds.float() * s.float()).sum(dim=-1)
    with torch.cuda.device_of(x):
        return triton.backward(ds.contiguous(), delta, lse.contiguous(), readable(a), readable(x), as_bytes(mask))


differentiate(forward, backward)
