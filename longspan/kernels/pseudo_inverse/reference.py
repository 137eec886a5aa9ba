"""The iteration as the paper prints it, matrix by matrix: the law."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor


def pseudo_inverse(
    a: Float[Tensor, "b h r r"], iterations: int, start: Literal["matrix", "batch"]
) -> Float[Tensor, "b h r r"]:
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    widest = a.sum(dim=-2).max()
    inverses = []
    for m in a.flatten(0, 1):
        z = m.T / (m.sum(dim=0).max() if start == "matrix" else widest)
        for _ in range(iterations):
            z = z @ (13 * one - m @ z @ (15 * one - m @ z @ (7 * one - m @ z))) / 4
        inverses.append(z)
    return torch.stack(inverses).unflatten(0, a.shape[:2])
