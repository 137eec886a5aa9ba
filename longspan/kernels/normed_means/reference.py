"""Normed means by way of every normed token: the law."""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.segment_means import segment_means


def normed_means(
    x: Float[Tensor, "b h n c"],
    weight: Float[Tensor, "c c"],
    bias: Float[Tensor, " c"],
    segments: int,
    mask: Bool[Tensor, "b n"] | None,
    eps: float,
) -> tuple[Float[Tensor, "b h r c"], Bool[Tensor, "b r"]]:
    x = x if mask is None else x.masked_fill(~mask[:, None, :, None], 0)
    normed = F.layer_norm(F.linear(x, weight.to(x.dtype), bias.to(x.dtype)), bias.shape, eps=eps)
    return segment_means(normed, segments, mask, longer="last")
