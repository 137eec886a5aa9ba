"""The nearest direction by two maxima: the law."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def nearest_direction(
    u: Float[Tensor, "*n m half"], factors: tuple[int, ...], offset: Float[Tensor, "m half"] | None
) -> Int[Tensor, "*n m"]:
    u = u if offset is None else u + offset
    buckets = torch.zeros_like(u[..., 0], dtype=torch.long)
    for part, factor in zip(u.split([f // 2 for f in factors], dim=-1), factors, strict=True):
        most, least = part.max(dim=-1), part.min(dim=-1)  # so that -u is not written down
        opposite = -least.values > most.values
        buckets = factor * buckets + torch.where(opposite, least.indices + factor // 2, most.indices)
    return buckets
