"""Gaussian kernels between vectors, and what the Nystrom method needs: inverses of small kernel matrices.

Plain PyTorch; along a long sequence only the kernels with a few landmarks are stored.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.pseudo_inverse import pseudo_inverse


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


def sketched_kernel(x: Float[Tensor, "*b n c"], points: Float[Tensor, "*b a r c"]) -> Float[Tensor, "*b n r"]:
    """The kernel of each x with each of r sums of `a` Gaussians around points."""
    a, r, _ = points.shape[-3:]
    return gaussian_kernel(x, points.flatten(-3, -2)).unflatten(-1, (a, r)).sum(dim=-2)


def sketch_inverse(
    points: Float[Tensor, "b h a r c"],
    iterations: int,
    *,
    ridge: float = 0.1,
    norm: Callable[[Float[Tensor, "b h r r"]], Float[Tensor, "#b #h 1 1"]] | None = None,
) -> Float[Tensor, "b h r r"]:
    """D pinv(D W D) D for W = the kernel of the sums with one another + ridge I, and D = diag(W 1)^(-1/2).

    `norm` gives the scale of the first step from the matrix; by default each matrix has its own.
    """
    a, r, _ = points.shape[-3:]
    w = sketched_kernel(points.flatten(-3, -2), points).unflatten(-2, (a, r)).sum(dim=-3)
    w = w + ridge * torch.eye(r, dtype=w.dtype, device=w.device)
    d = w.sum(dim=-1).rsqrt()
    w = d[..., :, None] * w * d[..., None, :]
    z = pseudo_inverse(w, iterations, norm=None if norm is None else norm(w))
    return d[..., :, None] * z * d[..., None, :]
