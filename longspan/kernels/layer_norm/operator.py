"""The Triton kernels as one operator of torch with its gradient.

Signatures of operators are read by torch, which knows tensors but no shapes; those of `layer_norm` say them.
"""

import torch
from torch import Tensor


@torch.library.custom_op("longspan::layer_norm", mutates_args=())
def forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    from longspan.kernels.layer_norm import triton

    with torch.cuda.device_of(x):  # Triton launches on the current device
        return triton.forth(x.contiguous(), weight.contiguous(), bias.contiguous(), eps)


@forward.register_fake
def _(x, weight, bias, eps):
    return x.new_empty(x.shape)


@torch.library.custom_op("longspan::layer_norm_backward", mutates_args=())
def backward(dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The gradient of x, and those of weight and bias [2 d] in float32."""
    from longspan.kernels.layer_norm import triton

    with torch.cuda.device_of(x):
        return triton.back(dy.contiguous(), x.contiguous(), weight.contiguous(), eps)


@backward.register_fake
def _(dy, x, weight, eps):
    return x.new_empty(x.shape), x.new_empty(2, x.shape[-1], dtype=torch.float32)


def _remember(ctx, inputs, output) -> None:
    x, weight, bias, ctx.eps = inputs
    ctx.save_for_backward(x, weight)
    ctx.bias_type = bias.dtype


def _gradients(ctx, dy):
    x, weight = ctx.saved_tensors
    dx, (dweight, dbias) = backward(dy, x, weight, ctx.eps)
    return dx, dweight.to(weight.dtype), dbias.to(ctx.bias_type), None


forward.register_autograd(_gradients, setup_context=_remember)
