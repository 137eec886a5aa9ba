"""Records level by level: the law."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor


def records(x: Float[Tensor, "b h n"], budget: Int[Tensor, "#b n"], among: int) -> Bool[Tensor, "b h n"]:
    passed_on = x
    for _ in range(min(among, x.shape[2])):  # each level keeps the larger and passes the smaller on
        kept = _shifted(passed_on.cummax(dim=-1).values, -torch.inf)
        passed_on = torch.minimum(passed_on, kept)
    # What every level passed on has as many larger ones before it as there are levels.
    wanted = (x > passed_on).cumsum(dim=-1)
    chosen = wanted + (budget[:, None] - wanted).cummin(dim=-1).values.clamp(max=0)
    return chosen > _shifted(chosen, 0)


def _shifted(x: Shaped[Tensor, "b h n"], first: int | float) -> Shaped[Tensor, "b h n"]:
    """What stood one place before."""
    return F.pad(x[..., :-1], (1, 0), value=first)
