"""Sampled scores as a torch operator; it has no gradient."""

import math

import torch
from torch import Tensor

from longspan.kernels.operator import operator


def _empty(q: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape[:3], dtype=torch.float32), q.new_empty(q.shape[:3], dtype=torch.float32)


@operator("sampled_qk", fake=_empty, flops=lambda q, k, sample, size: 2 * math.prod(q) * sample[2])
def sampled_qk(q: Tensor, k: Tensor, sample: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    from longspan.kernels.sampled_qk import triton

    with torch.cuda.device_of(q):  # Triton launches on the current device
        return triton.sampled_qk(q, k, sample, size)
