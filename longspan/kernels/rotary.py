"""Rotary positions: pairs of channels rotated by an angle that grows with the place of the token (arXiv:2104.09864).

    (a, b) -> (a cos wp - b sin wp, a sin wp + b cos wp)      w = base^(-2i/c) for pair i, p the place

so that the product of a rotated query and a rotated key depends only on the distance between their places. Channel i
makes a pair with channel i + c/2.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longspan.kernels.precision import at_least_single


def rotate(x: Float[Tensor, "... c"], places: Int[Tensor, "..."], base: float = 10_000.0) -> Float[Tensor, "... c"]:
    """Rotate every vector by its place; `places` broadcast against all axes of x but the last."""
    half = x.shape[-1] // 2
    frequency = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = places[..., None] * frequency
    cos, sin = angle.cos(), angle.sin()
    a, b = at_least_single(x).chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)
