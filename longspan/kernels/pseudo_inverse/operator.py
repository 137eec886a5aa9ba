"""The Triton kernels as one operator of torch with its gradient, which torch.compile takes into its graph unopened.

Signatures of operators are read by torch, which knows tensors but no shapes; those of `pseudo_inverse` say them.
"""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.flops import counts


@torch.library.custom_op("longspan::pseudo_inverse", mutates_args=())
def forward(a: Tensor, start: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """The last Z, and for the way back all before it [iterations b h r r]."""
    from longspan.kernels.pseudo_inverse import triton

    with torch.cuda.device_of(a):  # Triton launches on the current device
        return triton.invert(a.contiguous(), start.contiguous(), iterations)


@forward.register_fake
def _(a, start, iterations):
    return a.new_empty(a.shape), a.new_empty(iterations, *a.shape)


@torch.library.custom_op("longspan::pseudo_inverse_backward", mutates_args=())
def backward(dz: Tensor, a: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of A and of Z_0."""
    from longspan.kernels.pseudo_inverse import triton

    with torch.cuda.device_of(a):
        return triton.back(dz.contiguous(), a.contiguous(), steps.contiguous())


@backward.register_fake
def _(dz, a, steps):
    return a.new_empty(a.shape), a.new_empty(a.shape)


def _remember(ctx, inputs, output) -> None:
    ctx.save_for_backward(inputs[0], output[1])
    ctx.set_materialize_grads(False)  # nobody differentiates the steps


def _gradients(ctx, dz, _):
    return *backward(dz, *ctx.saved_tensors), None


forward.register_autograd(_gradients, setup_context=_remember)


@counts(torch.ops.longspan.pseudo_inverse)
def _pseudo_inverse(a: Any, start: Any, iterations: int, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """Four products a step."""
    return 4 * iterations * 2 * math.prod(a) * a[-1]


@counts(torch.ops.longspan.pseudo_inverse_backward)
def _pseudo_inverse_back(dz: Any, a: Any, steps: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """Three of these again, and two for each."""
    return 11 * steps[0] * 2 * math.prod(a) * a[-1]
