"""Segment means: the real tokens of each row cut into runs of nearly equal length, and the mean of each run.

A row with fewer tokens than segments has one token in each of its first segments and leaves the others empty, so that
its means are the tokens themselves. Only real tokens count: the cut moves with the true length of the row, and padding
changes nothing. Where the length does not divide, some segments have a token more: `longer="spread"` strews them over
the row, token p of n being in segment floor(p r / n); `longer="last"` puts them at its end. `reference.py` is the law.
"""

from typing import Literal

import torch
from einops import einsum, rearrange, reduce
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.segment_means import reference

Impl = Literal["auto", "reference"]
Longer = Literal["spread", "last"]


def segment_means(
    x: Float[Tensor, "b h n c"],
    segments: int,
    mask: Bool[Tensor, "b n"] | None = None,
    *,
    longer: Longer = "spread",
    impl: Impl = "auto",
) -> tuple[Float[Tensor, "b h r c"], Bool[Tensor, "b r"]]:
    """The means, and which segments hold a token at all (the mean of an empty one is 0).

    >>> segment_means(torch.tensor([1.0, 3.0, 5.0]).reshape(1, 1, 3, 1), 2)[0].flatten()
    tensor([2., 5.])
    """
    if impl == "reference":
        return reference.segment_means(x, segments, mask, longer=longer)
    b, n = x.shape[0], x.shape[2]
    if mask is None and n % segments == 0:
        means = reduce(x, "b h (r s) c -> b h r c", "mean", r=segments)
        return means, torch.ones(b, segments, dtype=torch.bool, device=x.device)
    mask = torch.ones(b, n, dtype=torch.bool, device=x.device) if mask is None else mask
    place = mask.cumsum(dim=1) - 1
    length = mask.sum(dim=1, keepdim=True).clamp(min=segments)  # in a short row every token is a segment
    if longer == "spread":
        segment = place * segments // length
    else:
        short, more = length // segments, length % segments
        border = (segments - more) * short
        behind = segments - more + (place - border).div(short + 1, rounding_mode="floor")
        segment = torch.where(place < border, place // short, behind)
    member = (segment[:, None, :] == torch.arange(segments, device=x.device)[:, None]) & mask[:, None, :]
    count = member.sum(dim=-1)
    # A product with a matrix of zeros and ones: the same sum each time, which scattering on a GPU does not promise.
    sums = einsum(member.to(x.dtype), x, "b r n, b h n c -> b h r c")
    return sums / rearrange(count.clamp(min=1), "b r -> b 1 r 1"), count > 0
