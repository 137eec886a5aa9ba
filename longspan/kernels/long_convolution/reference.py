"""Long convolution as a sum over all pairs of tokens."""

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor


def long_convolution(
    u: Float[Tensor, "*u t"], kernel: Float[Tensor, "*k t"], reverse: Float[Tensor, "*k t"] | None
) -> Float[Tensor, "*y t"]:
    t = torch.arange(u.shape[-1], device=u.device)
    lag = t[:, None] - t
    weights = torch.where(lag >= 0, kernel[..., lag.clamp(min=0)], 0)
    if reverse is not None:
        weights = torch.where(lag >= 0, weights, reverse[..., (-lag - 1).clamp(min=0)])
    return einsum(weights, u, "... t s, ... s -> ... t")
