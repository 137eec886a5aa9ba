"""The iteration as the paper prints it, matrix by matrix."""

import torch
from jaxtyping import Float
from torch import Tensor


def pseudo_inverse(
    a: Float[Tensor, "b h r r"], norm: Float[Tensor, "#b #h 1 1"], iterations: int
) -> Float[Tensor, "b h r r"]:
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    inverses = []
    for m, z in zip(a.flatten(0, 1), (a.mT / norm).flatten(0, 1), strict=True):
        for _ in range(iterations):
            z = z @ (13 * one - m @ z @ (15 * one - m @ z @ (7 * one - m @ z))) / 4
        inverses.append(z)
    return torch.stack(inverses).unflatten(0, a.shape[:2])
