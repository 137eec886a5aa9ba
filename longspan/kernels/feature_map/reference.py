"""Feature maps in plain PyTorch: the definition."""

import torch
from jaxtyping import Float
from torch import Tensor

SMALLEST = 1e-3  # what is added to a norm


def dpfp(x: Float[Tensor, "*n c"], nu: int) -> Float[Tensor, "*n r"]:
    u = torch.cat([x, -x], dim=-1).relu()
    return torch.cat([u * u.roll(shift, dims=-1) for shift in range(1, nu + 1)], dim=-1)


def waves(x: Float[Tensor, "b h n c"], matrix: Float[Tensor, "h r c"], scale: float) -> Float[Tensor, "b h n two_r"]:
    angles = x / (x.norm(dim=-1, keepdim=True) + SMALLEST) @ matrix.mT
    return scale * torch.cat([angles.sin(), angles.cos()], dim=-1)
