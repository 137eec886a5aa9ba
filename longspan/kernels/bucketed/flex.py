"""Attention within buckets by torch's flex_attention: the tokens of a round, sorted by bucket, see a band around them.

Which tiles lie in the band is the same for all rows, heads and rounds; who is in whose bucket is asked pair by pair.
Each round comes back with the logarithm of its sum, so that rounds can be weighed against one another.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from longspan.kernels.block_sparse import flex


def attend_sorted(
    q: Float[Tensor, "b hr n c"],
    k: Float[Tensor, "b hr n c"],
    v: Float[Tensor, "b hr n e"],
    bucket: Int[Tensor, "b hr n"],
    *,
    left: int,
    right: int,
) -> tuple[Float[Tensor, "b hr n e"], Float[Tensor, "b hr n"]]:
    """The softmax over all others of the bucket in the band, and the logarithm of its sum; 0 and -inf without any."""
    mask = band_mask(bucket, left, right)
    if torch.compiler.is_compiling() or q.device.type == "cpu":
        return _with_sums(q, k, v, mask)
    with torch._dynamo.config.patch(recompile_limit=flex.CASES):
        return _compiled()(q, k, v, mask)


def _with_sums(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask) -> tuple[Tensor, Tensor]:
    y, beside = flex_attention(q, k, v, block_mask=mask, scale=1.0, return_aux=AuxRequest(lse=True))
    assert beside.lse is not None
    return y, beside.lse


@cache
def _compiled() -> Callable[..., Any]:
    """The fused kernel, compiled once for all lengths."""
    return torch.compile(_with_sums, dynamic=True, fullgraph=True)


def band_mask(bucket: Int[Tensor, "b hr n"], left: int, right: int) -> BlockMask:
    """What each pair is to the kernel, and the tiles that have any pair to be asked about."""
    n, bucket = bucket.shape[2], bucket.int()
    at = torch.arange(n, dtype=torch.int32, device=bucket.device)
    limits = torch.stack([at - left, at + right])  # a tensor, so that no number in it is a case to compile

    def visible(row: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        near = (j >= limits[0, i]) & (j <= limits[1, i]) & (i != j)
        return near & (bucket[row, head, i] == bucket[row, head, j])

    before, after = (-(-side // flex.TILE) for side in (left, right))
    forth, back = _tiles(n, before, after, bucket.device), _tiles(n, after, before, bucket.device)
    return BlockMask((n, n), *forth, None, None, *back, None, None, BLOCK_SIZE=(flex.TILE, flex.TILE), mask_mod=visible)


def _tiles(
    n: int, before: int, after: int, device: torch.device
) -> tuple[Int[Tensor, "1 1 u"], Int[Tensor, "1 1 u u"]]:
    """How many tiles each tile has around it, itself among them, and which; those after these do not count."""
    at = torch.arange(-(-n // flex.TILE), dtype=torch.int32, device=device)
    first, last = (at - before).clamp(min=0), (at + after).clamp(max=len(at) - 1)
    return (last - first + 1)[None, None], ((first[:, None] + at) % len(at))[None, None]
