"""The Triton kernel as an operator of torch, which torch.compile takes into its graph unopened."""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.flops import counts


@torch.library.custom_op("longspan::sampled_qk", mutates_args=())
def sampled_qk(q: Tensor, k: Tensor, sample: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """largest and apart, [b h n] both."""
    from longspan.kernels.sampled_qk import triton

    with torch.cuda.device_of(q):  # Triton launches on the current device
        return triton.sampled_qk(q, k, sample, size)


@sampled_qk.register_fake
def _(q, k, sample, size):
    return q.new_empty(q.shape[:3], dtype=torch.float32), q.new_empty(q.shape[:3], dtype=torch.float32)


@counts(torch.ops.longspan.sampled_qk)
def _sampled_qk(q: Any, k: Any, sample: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return 2 * math.prod(q) * sample[2]
