"""The Triton kernel as an operator of torch, which torch.compile takes into its graph unopened; it has no gradient."""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.flops import counts


@torch.library.custom_op("longspan::records", mutates_args=())
def records(x: Tensor, budget: Tensor, among: int) -> Tensor:
    from longspan.kernels.running_topk import triton

    with torch.cuda.device_of(x):  # Triton launches on the current device
        return triton.records(x.contiguous(), budget.int().contiguous(), among)


@records.register_fake
def _(x, budget, among):
    return x.new_empty(x.shape, dtype=torch.bool)


@counts(torch.ops.longspan.records)
def _records(x: Any, budget: Any, among: int, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """A running maximum for each of the largest, a running sum and a running minimum."""
    return (among + 2) * math.prod(x)
