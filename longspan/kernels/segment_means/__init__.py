"""Segment means: the real tokens of each row cut into runs of nearly equal length, and the mean of each run.

A row with fewer tokens than segments has one token in each of its first segments and leaves the others empty, so that
its means are the tokens themselves. Only real tokens count: the cut moves with the true length of the row, and padding
changes nothing. Where the length does not divide, some segments have a token more: `longer="spread"` strews them over
the row, token p of n being in segment floor(p r / n); `longer="last"` puts them at its end. Means are those of float32
or better, and so is the result. `reference.py` is the law.
"""

from typing import Literal

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int32
from torch import Tensor

from longspan.kernels.precision import at_least_single
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
        return reference.segment_means(at_least_single(x), segments, mask, longer=longer)
    b, n = x.shape[0], x.shape[2]
    if mask is None and n % segments == 0:
        # Summed so, half precision has no wider copy, neither of the tokens nor of their gradients.
        runs, wide = x.unflatten(2, (segments, n // segments)), torch.promote_types(x.dtype, torch.float32)
        means = runs.sum(dim=3, dtype=wide) / (n // segments)
        return means, torch.ones(b, segments, dtype=torch.bool, device=x.device)
    x, mask = at_least_single(x), torch.ones(b, n, dtype=torch.bool, device=x.device) if mask is None else mask
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


def borders(mask: Bool[Tensor, "b n"], segments: int) -> tuple[Int32[Tensor, "b r1"], Bool[Tensor, "b r"]]:
    """Where each segment begins, the longer ones last, with n behind the last; and which of them hold a token.

    All tokens of a row, hidden ones too, lie between the first border and the last.
    """
    r, length = torch.arange(segments + 1, device=mask.device), mask.sum(dim=1, keepdim=True)
    cut = length.clamp(min=segments)
    place = r * (cut // segments) + (r - segments + cut % segments).clamp(min=0)  # among the real tokens of a row
    begins = torch.searchsorted(mask.cumsum(dim=1), place + r.clamp(max=1))  # n where there are not so many
    return begins.int(), place[:, :-1] < length
