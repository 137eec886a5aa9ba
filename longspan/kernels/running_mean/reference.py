"""Running mean by a running sum: the law."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.precision import at_least_single
from longspan.kernels.running_sum import running_sum


def running_mean(x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b h n c"]:
    if mask is None:
        count = torch.arange(1, x.shape[2] + 1, device=x.device)[:, None]
        return (running_sum(at_least_single(x)) / count).to(x.dtype)
    total = running_sum(at_least_single(x.masked_fill(~mask[:, None, :, None], 0)))
    return (total / mask.cumsum(dim=1).clamp(min=1)[:, None, :, None]).to(x.dtype)
