"""Tokens sorted by bucket into blocks of one size, each of which belongs to one bucket."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def bucket_blocks(
    bucket: Int[Tensor, "b h n"], buckets: int, size: int
) -> tuple[Int[Tensor, "b h n"], Int[Tensor, "b h g"], Int[Tensor, "b h blocks"]]:
    """The slot of each token, the first block of each bucket, and the bucket that owns each block.

    Every bucket has at least one block and keeps the order of its tokens; ceil(n / size) + buckets blocks suffice,
    however the tokens are spread.

    >>> slot, first, owner = bucket_blocks(torch.tensor([[[1, 0, 1, 1]]]), 2, size=2)
    >>> slot.tolist(), first.tolist(), owner.tolist()
    ([[[2, 0, 3, 4]]], [[[0, 1]]], [[[0, 1, 1, 1]]])
    """
    n = bucket.shape[2]
    count = bucket.new_zeros(*bucket.shape[:2], buckets).scatter_add(2, bucket, torch.ones_like(bucket))
    blocks = (-(-count // size)).clamp(min=1)
    end = blocks.cumsum(dim=2)
    first, begin = end - blocks, count.cumsum(dim=2) - count
    ordered, order = bucket.sort(dim=2, stable=True)
    rank = torch.arange(n, device=bucket.device) - begin.gather(2, ordered)
    slot = torch.zeros_like(bucket).scatter(2, order, first.gather(2, ordered) * size + rank)
    number = torch.arange(-(-n // size) + buckets, device=bucket.device).expand(*bucket.shape[:2], -1)
    owner = torch.searchsorted(end, number.contiguous(), right=True).clamp(max=buckets - 1)
    return slot, first, owner


def in_slots(
    x: Float[Tensor, "b h n c"], slot: Int[Tensor, "b h n"], blocks: int, size: int, fill: float = 0.0
) -> Float[Tensor, "b h blocks size c"]:
    """The tokens in their blocks, `fill` where there is none."""
    empty = x.new_full((*x.shape[:2], blocks * size, x.shape[3]), fill)
    return empty.scatter(2, slot[..., None].expand_as(x), x).unflatten(2, (blocks, size))
