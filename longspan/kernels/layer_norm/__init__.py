"""The layer norm of many tokens, each read once in the backward pass.

    y = w (x - mean) / sqrt(variance + eps) + b      over the channels of a token; moments in float32 or better

`reference` is torch's own, whose sums of the gradients of w and b over many tokens take longer than everything else in
it. `triton` is deterministic.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.layer_norm import operator, reference
from longspan.kernels.precision import without_autocast

WIDEST = 4096
LEAST = 2**20  # numbers: fewer are not worth waiting for


def layer_norm(
    x: Float[Tensor, "*rows d"],
    weight: Float[Tensor, " d"],
    bias: Float[Tensor, " d"],
    eps: float,
    *,
    impl: Implementation = "auto",
) -> Float[Tensor, "*rows d"]:
    """In the precision of x, as a projection is, whatever autocast would make of it."""
    if impl == "auto" and (torch.compiler.is_compiling() or x.numel() < LEAST):
        impl = "reference"  # torch.compile generates its own kernel
    reason = "" if x.numel() else "there are no tokens"
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        reason = f"it takes float32 or half precision, got {x.dtype}"
    elif x.shape[-1] > WIDEST:
        reason = f"tokens may have {WIDEST} channels, got {x.shape[-1]}"
    impl = choose(impl, "layer_norm", x, reason)
    with without_autocast(x):
        return (operator.forward if impl == "triton" else reference.layer_norm)(x, weight, bias, eps)
