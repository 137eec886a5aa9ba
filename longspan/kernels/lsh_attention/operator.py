"""LSH attention and its hash as torch operators, and how their Triton programs are launched.

`order` sorts the tokens of every round by bucket, `bucket` are their buckets in that order.
"""

import math

import torch
from torch import Tensor

from longspan.kernels.launch import ceil
from longspan.kernels.operator import differentiate, operator


def _token_by_token(x: Tensor) -> Tensor:
    """[b h n c] as [b n h c], without a copy if it comes from a projection."""
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

    (b, h, rounds, n), (z, v) = order.shape, map(_token_by_token, (z, v))
    sorting = order.contiguous(), bucket.contiguous()
    y, lse = torch.empty_like(v), z.new_empty(b, h, n, dtype=torch.float32)
    mean = torch.empty_like(v, dtype=torch.float32) if rounds > 1 else y  # of the rounds so far
    shape = triton.launch(triton.FORWARD, z, v, left + right)
    with torch.cuda.device_of(z):  # Triton launches on the current device
        for turn in range(rounds):
            triton.forward[(b * h * ceil(n, shape["T"]),)](
                z, v, *sorting, mean, lse, y, h, n, rounds, turn, left, right, scale,
                FIRST=turn == 0, LAST=turn == rounds - 1, **shape,
            )  # fmt: skip
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

    (b, h, rounds, n), (dy, y, z, v) = order.shape, map(_token_by_token, (dy, y, z, v))
    sorting, lse, delta = (order.contiguous(), bucket.contiguous()), lse.contiguous(), torch.empty_like(lse)
    dz, dv = torch.empty_like(z), torch.empty_like(v)
    z_sums, v_sums = (torch.empty_like(x, dtype=torch.float32) if rounds > 1 else x for x in (dz, dv))
    shape = triton.launch(triton.BACKWARD, z, v, 2 * max(left, right))
    grid = (b * h * ceil(n, shape["T"]),)
    with torch.cuda.device_of(z):
        triton.delta[grid](dy, y, delta, h, n, **{word: shape[word] for word in ("e", "E", "T", "num_warps")})
        for turn in range(rounds):
            triton.backward[grid](
                dy, delta, lse, z, v, *sorting, z_sums, v_sums, dz, dv, h, n, rounds, turn, left, right, scale,
                FIRST=turn == 0, LAST=turn == rounds - 1, **shape,
            )  # fmt: skip
    return dz.transpose(1, 2), dv.transpose(1, 2)


differentiate(forward, backward)


def _pairs(order: tuple[int, ...], left: int, right: int) -> int:
    """Every token with as many others as its window may hold, in every round."""
    return math.prod(order) * min(left + right, order[3] - 1)


@operator("cross_polytope_hash", fake=lambda u, factors, offset: u.new_empty(u.shape[:-1], dtype=torch.long))
def cross_polytope_hash(u: Tensor, factors: list[int], offset: Tensor | None) -> Tensor:
    """[*n m] of u [*n m half] and offset [m half]; it has no gradient."""
    from longspan.kernels.lsh_attention import triton

    (m, half), (one, other), u = u.shape[-2:], (*factors, 0)[:2], u.contiguous()
    found, (T, H) = u.new_empty(u.shape[:-1], dtype=torch.long), triton.hashed_rows(half)
    with torch.cuda.device_of(u):
        triton.cross_polytope_hash[(ceil(found.numel(), T),)](
            u, u if offset is None else offset.contiguous(), found, found.numel(), m,
            half=half, one=one, other=other, T=T, H=H, OFFSET=offset is not None,
        )  # fmt: skip
    return found
