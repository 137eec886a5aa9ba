"""LSH attention and its hash as torch operators.

`order` sorts the tokens of every round by bucket, `bucket` are their buckets in that order.
"""

import math

import torch
from torch import Tensor

from longspan.kernels.operator import differentiate, operator


def _token_by_token(x: Tensor) -> Tensor:
    """[b n h c] of [b h n c], which is no copy where a projection has made it."""
    return x.transpose(1, 2).contiguous()


def _like(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2) for x in tensors)


@operator(
    "lsh_attention",
    fake=lambda z, v, *_: (*_like(v), z.new_empty(z.shape[:3], dtype=torch.float32)),
    flops=lambda z, v, order, bucket, left, right, scale: _pairs(order, left, right) * 2 * (z[3] + v[3]),
)
def forward(
    z: Tensor, v: Tensor, order: Tensor, bucket: Tensor, left: int, right: int, scale: float
) -> tuple[Tensor, Tensor]:
    """y, and the log-sum-exp of each token over all rounds [b h n]."""
    from longspan.kernels.lsh_attention import triton

    z, v = map(_token_by_token, (z, v))
    with torch.cuda.device_of(z):  # Triton launches on the current device
        y, lse = triton.forward(z, v, order.contiguous(), bucket.contiguous(), left, right, scale)
    return y.transpose(1, 2), lse


@operator(
    "lsh_attention_backward",
    fake=lambda dy, y, lse, z, v, *_: _like(z, v),
    flops=lambda dy, y, lse, z, v, order, bucket, left, right, scale: (
        _pairs(order, left, right) * 2 * (3 * z[3] + 2 * v[3])
    ),
)
def backward(
    dy: Tensor,
    y: Tensor,
    lse: Tensor,
    z: Tensor,
    v: Tensor,
    order: Tensor,
    bucket: Tensor,
    left: int,
    right: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The gradients of z and v."""
    from longspan.kernels.lsh_attention import triton

    dy, y, z, v = map(_token_by_token, (dy, y, z, v))
    sorting = order.contiguous(), bucket.contiguous()
    with torch.cuda.device_of(z):
        dz, dv = triton.backward(dy, y, lse.contiguous(), z, v, *sorting, left, right, scale)
    return dz.transpose(1, 2), dv.transpose(1, 2)


differentiate(forward, backward)


def _pairs(order: tuple[int, ...], left: int, right: int) -> int:
    """Every token with as many others as its window may hold, in every round."""
    return math.prod(order) * min(left + right, order[3] - 1)


@operator("cross_polytope_hash", fake=lambda u, factors, offset: u.new_empty(u.shape[:-1], dtype=torch.long))
def cross_polytope_hash(u: Tensor, factors: list[int], offset: Tensor | None) -> Tensor:
    """[*n m] of u [*n m half] and offset [m half]; it has no gradient."""
    from longspan.kernels.lsh_attention import triton

    with torch.cuda.device_of(u):
        return triton.cross_polytope_hash(u.contiguous(), factors, None if offset is None else offset.contiguous())
