"""The Triton kernels as one operator of torch with its gradient, which torch.compile takes into its graph unopened.

Signatures of operators are read by torch, which knows tensors but no shapes; those of `balance` say them.
"""

import torch
from torch import Tensor


@torch.library.custom_op("longspan::balance", mutates_args=())
def forward(x: Tensor, allowed: Tensor, iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    """S; and for the way back r and c of every round, [i b h u] and [i b h v]."""
    from longspan.kernels.sinkhorn_normalize import triton

    with torch.cuda.device_of(x):  # Triton launches on the current device
        return triton.balance(x.contiguous(), _bytes(allowed), iterations)


@forward.register_fake
def _(x, allowed, iterations):
    (b, h, u, v), i = x.shape, iterations
    return x.new_empty(x.shape), x.new_empty(i, b, h, u), x.new_empty(i, b, h, v)


@torch.library.custom_op("longspan::balance_backward", mutates_args=())
def backward(ds: Tensor, s: Tensor, x: Tensor, allowed: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    from longspan.kernels.sinkhorn_normalize import triton

    with torch.cuda.device_of(x):
        return triton.back((ds * s).contiguous(), x.contiguous(), _bytes(allowed), rows.contiguous(), columns)


@backward.register_fake
def _(ds, s, x, allowed, rows, columns):
    return x.new_empty(x.shape)


def _bytes(allowed: Tensor) -> Tensor:
    return allowed.contiguous().view(torch.uint8)


def _remember(ctx, inputs, output) -> None:
    x, allowed, _ = inputs
    s, rows, columns = output
    ctx.save_for_backward(s, x, allowed, rows, columns)
    ctx.set_materialize_grads(False)  # nobody differentiates r and c


def _gradients(ctx, ds, *nothing):
    return backward(ds, *ctx.saved_tensors), None, None


forward.register_autograd(_gradients, setup_context=_remember)
