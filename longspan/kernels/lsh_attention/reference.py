"""LSH attention with the whole matrix of weights, and the hash by two maxima."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longspan.kernels.precision import at_least_single


def weights(
    z: Float[Tensor, "b h n c"], buckets: Int[Tensor, "b h r n"], *, left: int, right: int, scale: float
) -> Float[Tensor, "b h n n"]:
    """A softmax in which every key counts as often as it is seen, and a token's own only where there is no other."""
    same = buckets[..., :, None] == buckets[..., None, :]
    rank = same.tril().sum(dim=-1)  # a token's position in its own bucket, from 1 on
    lag = rank[..., None, :] - rank[..., :, None]
    itself = torch.eye(z.shape[2], dtype=torch.long, device=z.device)
    times = (same & (lag >= -left) & (lag <= right)).sum(dim=2) * (1 - itself)
    times = torch.where(times.sum(dim=-1, keepdim=True) == 0, itself, times)
    k = keys(z, scale)
    scores = at_least_single(z.to(k.dtype) @ k.mT)
    return torch.softmax(scores + times.to(scores.dtype).log(), dim=-1)


def keys(z: Float[Tensor, "*n c"], scale: float) -> Float[Tensor, "*n c"]:
    """z at the length `scale`, and finite where z vanishes; in single precision or better."""
    z = at_least_single(z)
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    return z * (scale * (length.square() + 1e-6 * z.shape[-1]).rsqrt())


def cross_polytope_hash(
    u: Float[Tensor, "*n m half"], factors: tuple[int, ...], offset: Float[Tensor, "m half"] | None
) -> Int[Tensor, "*n m"]:
    u = u if offset is None else u + offset
    buckets = torch.zeros_like(u[..., 0], dtype=torch.long)
    for part, factor in zip(u.split([f // 2 for f in factors], dim=-1), factors, strict=True):
        most, least = part.max(dim=-1), part.min(dim=-1)  # so that -u is not stored
        opposite = -least.values > most.values
        buckets = factor * buckets + torch.where(opposite, least.indices + factor // 2, most.indices)
    return buckets
