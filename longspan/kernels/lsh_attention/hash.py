"""Cross-polytope hash: the nearest of some random directions and their opposites.

    bucket = argmax [u, -u]      u = z R, the first of equals      R [c, buckets / 2] Gaussian

More than 128 buckets are numbered by two such hashes, `factors` = (f_1, f_2), with columns of R for each:
bucket = f_2 b_1 + b_2. So a token is compared with f_1 + f_2 directions, not with all buckets.

A hash needs single precision: a rounded z sends some tokens to another bucket, where all they see is different. Where
only a rounded z = x W + b exists, `hash_projected` computes u as x (W R) + b R.
"""

import math

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from longspan.core.errors import UsageError
from longspan.kernels.bf16x3_matmul import bf16x3_matmul
from longspan.kernels.precision import at_least_single, without_autocast

LARGEST_SINGLE_HASH = 128  # buckets


def hash_factors(buckets: int) -> tuple[int, ...]:
    """The sizes of the hashes that number the buckets: one, or two even ones as equal as possible.

    >>> hash_factors(128), hash_factors(512), hash_factors(264)
    ((128,), (16, 32), (12, 22))
    """
    if buckets < 2 or buckets % 2:
        raise UsageError(f"Buckets come in pairs of opposite directions, got buckets={buckets}; choose an even number.")
    if buckets <= LARGEST_SINGLE_HASH:
        return (buckets,)
    if buckets % 4:
        raise UsageError(
            f"More than {LARGEST_SINGLE_HASH} buckets are pairs of two even hashes, got buckets={buckets}; "
            "choose a multiple of 4."
        )
    quarter = buckets // 4
    less = next(divisor for divisor in range(math.isqrt(quarter), 0, -1) if quarter % divisor == 0)
    return 2 * less, 2 * (quarter // less)


@torch.no_grad()
def hash_vectors(
    z: Float[Tensor, "*n h c"], rotations: Float[Tensor, "h c r half"], factors: tuple[int, ...]
) -> Int[Tensor, "*n h r"]:
    """The buckets of z in each of r rounds."""
    with without_autocast(z):
        z = at_least_single(z)
        u = einsum(z, rotations.to(z.dtype), "... h c, h c r half -> ... h r half")
        return cross_polytope_hash(u, factors)


@torch.no_grad()
def hash_projected(
    x: Float[Tensor, "*n d"],
    weight: Float[Tensor, "hc d"],
    bias: Float[Tensor, " hc"] | None,
    rotations: Float[Tensor, "h c r half"],
    factors: tuple[int, ...],
) -> Int[Tensor, "*n h r"]:
    """The buckets of z = x weight^T + bias in single precision, where there is only a rounded z."""
    heads, _, rounds, half = rotations.shape
    with without_autocast(x):
        weight, offset = at_least_single(weight).unflatten(0, (heads, -1)), None
        rotations = rotations.to(weight.dtype)
        directions = einsum(weight, rotations, "h c d, h c r half -> d h r half")
        if bias is not None:
            bias = bias.to(weight.dtype).unflatten(0, (heads, -1))
            offset = einsum(bias, rotations, "h c, h c r half -> h r half").flatten(0, 1)
        u = bf16x3_matmul(x.flatten(0, -2), directions.flatten(1))
        buckets = cross_polytope_hash(u.unflatten(-1, (-1, half)), factors, offset)
    return buckets.view(*x.shape[:-1], heads, rounds)


@torch.no_grad()
def cross_polytope_hash(
    u: Float[Tensor, "*n m half"], factors: tuple[int, ...], offset: Float[Tensor, "m half"] | None = None
) -> Int[Tensor, "*n m"]:
    """argmax [u, -u] of m hashes of each token, `offset` added to u first.

    >>> cross_polytope_hash(torch.tensor([[0.5, -2.0], [0.5, 0.1]]), (4,))
    tensor([3, 0])
    """
    u = u if offset is None else u + offset
    buckets = torch.zeros_like(u[..., 0], dtype=torch.long)
    for part, factor in zip(u.split([f // 2 for f in factors], dim=-1), factors, strict=True):
        most, least = part.max(dim=-1), part.min(dim=-1)  # so that -u is not stored
        opposite = -least.values > most.values
        buckets = factor * buckets + torch.where(opposite, least.indices + factor // 2, most.indices)
    return buckets
