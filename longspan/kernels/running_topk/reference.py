"""Running top-k by k running maxima."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor


def running_topk(x: Float[Tensor, "b h n"], budget: Int[Tensor, "#b n"], k: int) -> Bool[Tensor, "b h n"]:
    smaller = x
    for _ in range(min(k, x.shape[2])):  # each running maximum passes on what is smaller than it
        smaller = torch.minimum(smaller, _shifted(smaller.cummax(dim=-1).values, -torch.inf))
    candidates = (x > smaller).cumsum(dim=-1)
    chosen = candidates + (budget[:, None] - candidates).cummin(dim=-1).values.clamp(max=0)
    return chosen > _shifted(chosen, 0)


def _shifted(x: Shaped[Tensor, "b h n"], first: int | float) -> Shaped[Tensor, "b h n"]:
    """Each number at the next position."""
    return F.pad(x[..., :-1], (1, 0), value=first)
