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
from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.lsh_attention import operator, reference
from longspan.kernels.precision import at_least_single, without_autocast

LARGEST_SINGLE_HASH = 128  # buckets
MOST_DIRECTIONS = 4_096  # of a row that a program of the Triton kernel can hold


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
    u: Float[Tensor, "*n m half"],
    factors: tuple[int, ...],
    offset: Float[Tensor, "m half"] | None = None,
    *,
    impl: Implementation = "auto",
) -> Int[Tensor, "*n m"]:
    """argmax [u, -u] of m hashes of each token, `offset` added to u first.

    >>> cross_polytope_hash(torch.tensor([[0.5, -2.0], [0.5, 0.1]]), (4,))
    tensor([3, 0])
    """
    if choose(impl, "cross_polytope_hash", u, _unsupported_reason(u, factors)) == "triton":
        return operator.cross_polytope_hash(u, list(factors), offset)
    return reference.cross_polytope_hash(u, factors, offset)


def _unsupported_reason(u: Float[Tensor, "*n m half"], factors: tuple[int, ...]) -> str:
    if u.dtype != torch.float32:
        return f"it takes float32, got {u.dtype}"
    if u.shape[-1] > MOST_DIRECTIONS or len(factors) > 2:
        return f"it compares up to {MOST_DIRECTIONS} directions of two hashes, got {u.shape[-1]} of {len(factors)}"
    return "" if u.numel() else "there are no tokens"
