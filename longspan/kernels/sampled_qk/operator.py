"""Sampled scores as a torch operator, and how its Triton program is launched; it has no gradient."""

import math

import torch
from torch import Tensor

from longspan.kernels.launch import readable, strides
from longspan.kernels.operator import operator


def _empty(q: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape[:3], dtype=torch.float32), q.new_empty(q.shape[:3], dtype=torch.float32)


@operator("sampled_qk", fake=_empty, flops=lambda q, k, sample, size: 2 * math.prod(q) * sample[2])
def sampled_qk(q: Tensor, k: Tensor, sample: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    from longspan.kernels.sampled_qk import triton

    (b, h, n, c), q, k = q.shape, readable(q), readable(k)
    largest, gap = _empty(q)
    shared = (0 if len(x) == 1 else n for x in (sample, size))  # by all rows
    with torch.cuda.device_of(q):  # Triton launches on the current device
        triton.sampled_qk[(n, b * h)](
            *(q, k, sample.int().contiguous(), size.int().contiguous(), largest, gap),
            *(n, h, *shared, *strides(q, k)),
            **triton.launch(sample.shape[2], c),
        )
    return largest, gap
