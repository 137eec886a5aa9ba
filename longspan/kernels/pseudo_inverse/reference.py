"""The iteration in plain PyTorch, one fused product a bracket."""

import torch
from jaxtyping import Float
from torch import Tensor


def pseudo_inverse(
    a: Float[Tensor, "b h r r"], start: Float[Tensor, "b h r r"], iterations: int
) -> Float[Tensor, "b h r r"]:
    minus_a, z = -a.flatten(0, 1), start.flatten(0, 1)
    for _ in range(iterations):  # Z <- Z (13 I + N (15 I + N (7 I + N))) / 4 with N = -AZ
        n = minus_a @ z
        seven = torch.baddbmm(n, n, n, beta=7)
        fifteen = torch.baddbmm(n, n, seven, beta=15)
        z = torch.baddbmm(z, z, fifteen, beta=13) / 4
    return z.unflatten(0, a.shape[:2])
