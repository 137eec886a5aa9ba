"""The Triton kernel as an operator of torch, which torch.compile takes into its graph unopened."""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.counting import counts


@torch.library.custom_op("longspan::sampled_scores", mutates_args=())
def sampled_scores(q: Tensor, k: Tensor, sample: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """largest and apart, [b h n] both."""
    from longspan.kernels.sampled_scores import triton

    with torch.cuda.device_of(q):  # Triton launches on the current device
        return triton.sampled_scores(q, k, sample, size)


@sampled_scores.register_fake
def _(q, k, sample, size):
    return q.new_empty(q.shape[:3], dtype=torch.float32), q.new_empty(q.shape[:3], dtype=torch.float32)


@counts(torch.ops.longspan.sampled_scores)
def _sampled_scores(q: Any, k: Any, sample: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return 2 * math.prod(q) * sample[2]
