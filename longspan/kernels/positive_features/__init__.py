"""Positive random features of the softmax kernel, each kept below 1 by a maximum that cancels in a quotient.

    phi(x)_r = exp(W_r . x' - |x'|^2 / 2 + shift_r)      x' = x / c^(1/4)

`relative_features` divides each token by its largest feature, `common_features` each feature by its largest value of
all tokens; both say by what. No gradient goes through a maximum. Exponentials are computed in float32 or better.
`reference` keeps them so; `triton` stores them in the type of x, and fills their number up to a multiple of 16 with
zeros.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.choice import Implementation, choose
from longspan.kernels.positive_features import operator, reference
from longspan.kernels.positive_features.reference import log_features
from longspan.kernels.precision import without_autocast

__all__ = ["common_features", "log_features", "relative_features"]

WIDEST = 128  # channels


def relative_features(
    x: Float[Tensor, "b h n c"],
    projection: Float[Tensor, "r c"],
    *,
    shift: Float[Tensor, "b h r"] | None = None,
    mask: Bool[Tensor, "b n"] | None = None,
    impl: Implementation = "auto",
) -> tuple[Float[Tensor, "b h n _"], Float[Tensor, "b h n"]]:
    """phi over the largest feature of each token, and the logarithm of that one; of hidden tokens phi is 0.

    >>> phi_k, level = relative_features(k, projection, mask=key_mask)
    """
    with without_autocast(x):
        if choose(impl, "positive_features", x, _obstacle(x)) == "triton":
            return operator.forward(x, projection, shift, mask, True)
        logs = reference.log_features(x, projection)
        logs = logs if shift is None else logs + shift[:, :, None]
        return reference.relative(reference.hide(logs, mask))


def common_features(
    x: Float[Tensor, "b h m c"],
    projection: Float[Tensor, "r c"],
    *,
    mask: Bool[Tensor, "b m"] | None = None,
    impl: Implementation = "auto",
) -> tuple[Float[Tensor, "b h m _"], Float[Tensor, "b h r"]]:
    """phi over the largest value of each feature, and the logarithms of those; of hidden tokens phi is 0.

    >>> phi_k, largest = common_features(k, projection, mask=key_mask)
    >>> phi_q, _ = relative_features(q, projection, shift=largest)
    """
    with without_autocast(x):
        if choose(impl, "positive_features", x, _obstacle(x)) == "triton":
            largest = operator.largest(x.detach(), projection, mask)
            return operator.forward(x, projection, -largest, mask, False)[0], largest
        return reference.common(reference.hide(reference.log_features(x, projection), mask))


def _obstacle(x: Float[Tensor, "b h n c"]) -> str:
    """What keeps the kernels from these tokens, if anything."""
    if x.dtype not in (torch.float32, torch.bfloat16):
        return f"it takes float32 or bfloat16, got {x.dtype}"
    if x.shape[3] > WIDEST:
        return f"heads must be at most {WIDEST} wide, got {x.shape[3]}"
    return "" if x.numel() else "there are no tokens"
