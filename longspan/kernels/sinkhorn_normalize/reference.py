"""Sinkhorn normalisation step by step."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def sinkhorn_normalize(
    x: Float[Tensor, "b h u v"], allowed: Bool[Tensor, "#b 1 u v"], iterations: int
) -> Float[Tensor, "b h u v"]:
    nothing = torch.finfo(x.dtype).min / 4  # finite, so that a row without anything allowed has a gradient of 0
    x = x.masked_fill(~allowed, nothing)
    for _ in range(iterations):
        for across in (3, 2):
            x = x.log_softmax(dim=across).masked_fill(~allowed, nothing)
    return x.exp()
