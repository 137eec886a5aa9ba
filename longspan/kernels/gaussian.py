"""Gaussian kernels between vectors, and the inverse of a matrix of them by Newton's method, in plain PyTorch."""

import torch
from jaxtyping import Float
from torch import Tensor


def gaussian_kernel(a: Float[Tensor, "*b n c"], b: Float[Tensor, "*b m c"]) -> Float[Tensor, "*b n m"]:
    """exp(-|a_i - b_j|^2 / 2); rounding never makes it more than 1."""
    squares = a.square().sum(dim=-1)[..., :, None] + b.square().sum(dim=-1)[..., None, :]
    return (a @ b.mT - squares / 2).clamp(max=0).exp()


def newton_inverse(
    a: Float[Tensor, "*b r r"], iterations: int, *, ridge: float = 0.01, start: float = 1.8
) -> Float[Tensor, "*b r r"]:
    """The inverse of a + ridge I, for a symmetric matrix without negative entries.

    Z <- 2 Z - Z (a + ridge I) Z      Z_0 = start (a + ridge I) / (largest sum of a row of a)^2
    """
    largest = a.sum(dim=-1).amax(dim=-1)[..., None, None]
    a = a + ridge * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    z = start * a / largest.square()
    for _ in range(iterations):
        z = 2 * z - z @ a @ z
    return z
