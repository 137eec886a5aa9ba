"""Softmax pooling: a few summaries of a row, each a mean of its tokens with softmax weights of its own.

    s_r = sum_j p_jr x_j      p_r = softmax_j(a_jr)      over the real tokens j; 0 without any

The softmax runs in float32 or better and is then rounded to the type of x, whose sums are those of a matrix product.
`reference` defines the answer and keeps all weights; `triton` computes them as it reads the tokens, in any memory
layout, and is deterministic.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.precision import without_autocast
from longspan.kernels.softmax_pooling import operator, reference

MOST, WIDEST = 128, 128  # summaries of a row, and channels


def softmax_pooling(
    a: Float[Tensor, "b h n r"],
    x: Float[Tensor, "b h n c"],
    *,
    mask: Bool[Tensor, "b n"] | None = None,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h r c"]:
    """The means of x with the weights softmax(a), a softmax over the tokens for each of r summaries."""
    impl = choose(impl, "softmax_pooling", x, _unsupported_reason(a, x))
    with without_autocast(x):
        if impl == "reference":
            return reference.softmax_pooling(a, x, mask)
        return operator.forward(a, x, mask)[0]


def _unsupported_reason(a: Float[Tensor, "b h n r"], x: Float[Tensor, "b h n c"]) -> str:
    """What keeps the kernel from these tensors, if anything."""
    if not {a.dtype, x.dtype} <= {torch.float32, torch.bfloat16, torch.float16}:
        return f"it takes float32 and half precision, got {a.dtype} and {x.dtype}"
    if a.shape[3] > MOST or x.shape[3] > WIDEST:
        return f"there may be {MOST} summaries of {WIDEST} channels, got {a.shape[3]} of {x.shape[3]}"
    return "" if a.numel() and x.numel() else "there are no tokens"
