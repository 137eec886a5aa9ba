"""Running top-k as a torch operator, and how its Triton program is launched; it has no gradient."""

import math

import torch
from torch import Tensor

from longspan.kernels.launch import next_power_of_2
from longspan.kernels.operator import operator


@operator(
    "running_topk",
    fake=lambda x, budget, k: x.new_empty(x.shape, dtype=torch.bool),
    flops=lambda x, budget, k: (k + 2) * math.prod(x),  # a running maximum for each of the k, a running sum and minimum
)
def running_topk(x: Tensor, budget: Tensor, k: int) -> Tensor:
    from longspan.kernels.running_topk import triton

    (b, h, n), x, budget = x.shape, x.contiguous(), budget.int().contiguous()
    chosen, T = torch.empty_like(x, dtype=torch.bool), min(triton.TILE, next_power_of_2(n))
    shape = {"k": k, "K": next_power_of_2(k), "T": T, "num_warps": max(1, T // 256)}
    with torch.cuda.device_of(x):  # Triton launches on the current device
        triton.running_topk[(b * h,)](x, budget, chosen.view(torch.uint8), h, n, 0 if len(budget) == 1 else n, **shape)
    return chosen
