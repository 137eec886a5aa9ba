"""Geometry of point clouds as torch operators, and how their Triton programs are launched; indices have no gradient."""

import math

import torch
from torch import Tensor

from longspan.kernels.launch import ceil, next_power_of_2
from longspan.kernels.operator import operator

MOST_POINTS = 16_384  # that a program of `farthest_points` or `k_nearest` holds in registers
PAIR = 8  # operations: three differences, three squares, two sums
NEAREST = {"R": 32, "C": 32, "STEPS": 16, "num_warps": 1}  # a lane has one column of 32 rows, in a chunk 16 columns
COLUMNS = 128  # whose tile a program of `in_block` searches


def _index(x: Tensor, *shape: int) -> Tensor:
    return x.new_empty(shape, dtype=torch.long)


@operator(
    "nearest_point",
    fake=lambda a, b: _index(a, *a.shape[:2]),
    flops=lambda a, b: PAIR * math.prod(a[:2]) * b[1],
)
def nearest(a: Tensor, b: Tensor) -> Tensor:
    from longspan.kernels.point_cloud import triton

    (clouds, n, _), m, index = a.shape, b.shape[1], _index(a, *a.shape[:2])
    a, b = a.mT.contiguous(), b.mT.contiguous()
    with torch.cuda.device_of(a):  # Triton launches on the current device
        triton.nearest[(ceil(n, NEAREST["R"]), clouds)](a, b, index, index, n, m, BOTH=False, **NEAREST)
    return index


@operator(
    "nearest_points_both_ways",
    fake=lambda a, b: (_index(a, *a.shape[:2]), _index(b, *b.shape[:2])),
    flops=lambda a, b: PAIR * math.prod(a[:2]) * b[1],
)
def nearest_both_ways(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    from longspan.kernels.point_cloud import triton

    (clouds, n, _), m, index, back = a.shape, b.shape[1], _index(a, *a.shape[:2]), _index(b, *b.shape[:2])
    a, b, R = a.mT.contiguous(), b.mT.contiguous(), NEAREST["R"]
    blocks = torch.full_like(back, torch.iinfo(torch.long).max)
    with torch.cuda.device_of(a):
        triton.nearest[(ceil(n, R), clouds)](a, b, index, blocks, n, m, BOTH=True, **NEAREST)
        triton.in_block[(ceil(m, COLUMNS), clouds)](a, b, blocks, back, n, m, R=R, T=COLUMNS)
    return index, back


@operator(
    "k_nearest_points",
    fake=lambda query, source, k: _index(query, *query.shape[:2], k),
    flops=lambda query, source, k: PAIR * math.prod(query[:2]) * source[1],
)
def k_nearest(query: Tensor, source: Tensor, k: int) -> Tensor:
    from longspan.kernels.point_cloud import triton

    (clouds, n, _), m = query.shape, source.shape[1]
    index, M = _index(query, clouds, n, k), next_power_of_2(m)
    launch = {"k": k, "M": M, "num_warps": max(1, M // 2_048)}
    with torch.cuda.device_of(query):
        triton.k_nearest[(n, clouds)](query.contiguous(), source.mT.contiguous(), index, n, m, **launch)
    return index


@operator(
    "farthest_points",
    fake=lambda x, allowed, k: _index(x, x.shape[0], k),
    flops=lambda x, allowed, k: PAIR * math.prod(x[:2]) * k,
)
def farthest_points(x: Tensor, allowed: Tensor, k: int) -> Tensor:
    from longspan.kernels.point_cloud import triton

    clouds, n, _ = x.shape
    index, N = _index(x, clouds, k), next_power_of_2(n)
    start = torch.where(allowed, torch.inf, -1.0)
    # Without fused multiply-adds, so that distances are those of the reference bit by bit
    launch = {"num_warps": min(16, max(1, N // 512)), "enable_fp_fusion": False}
    with torch.cuda.device_of(x):
        triton.farthest_points[(clouds,)](x.contiguous(), start, index, n, k, N=N, **launch)
    return index
