"""Sampled scores with every sampled key copied to its query."""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from longspan.kernels.precision import at_least_single

AT_ONCE = 8  # samples whose keys are held at the same time


def sampled_qk(
    q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h m c"], sample: Int[Tensor, "#b n s"], size: Int[Tensor, "#b n"]
) -> tuple[Float[Tensor, "b h n"], Float[Tensor, "b h n"]]:
    rows = torch.arange(q.shape[0], device=q.device)[:, None, None]
    q, k = (rearrange(at_least_single(u), "b h n c -> b n h c") for u in (q, k))
    scores = torch.cat([(q[:, :, None] * k[rows, some]).sum(dim=-1) for some in sample.split(AT_ONCE, dim=2)], dim=2)
    drawn = (torch.arange(sample.shape[2], device=q.device) < size[..., None])[..., None]
    largest = scores.masked_fill(~drawn, -torch.inf).amax(dim=2, keepdim=True)
    gap = (largest - scores).masked_fill(~drawn, 0).sum(dim=2)
    return rearrange(largest, "b n 1 h -> b h n"), rearrange(gap, "b n h -> b h n")
