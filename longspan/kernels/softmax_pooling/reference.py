"""Softmax pooling with all weights at once."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.precision import at_least_single


def softmax_pooling(
    a: Float[Tensor, "b h n r"], x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None
) -> Float[Tensor, "b h r c"]:
    a = at_least_single(a)
    if mask is None:
        return a.softmax(dim=2).to(x.dtype).mT @ x
    hidden = ~mask[:, None, :, None]
    p = a.masked_fill(hidden, torch.finfo(a.dtype).min).softmax(dim=2).masked_fill(hidden, 0)
    return p.to(x.dtype).mT @ x
