"""Pooling as it is defined: products with a matrix of membership, every token normed, all weights, running sums."""

from typing import Literal

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.precision import at_least_single
from longspan.kernels.running_sum import running_sum


def segment_means(
    x: Float[Tensor, "b h n c"],
    segments: int,
    mask: Bool[Tensor, "b n"] | None = None,
    *,
    longer: Literal["spread", "last"] = "spread",
) -> tuple[Float[Tensor, "b h r c"], Bool[Tensor, "b r"]]:
    """The means, and which segments hold a token at all.

    >>> segment_means(torch.tensor([1.0, 3.0, 5.0]).reshape(1, 1, 3, 1), 2)[0].flatten()
    tensor([2., 5.])
    """
    b, n = x.shape[0], x.shape[2]
    if mask is None and n % segments == 0:
        # Summed this way, half precision needs no wider copy of the tokens or of their gradients.
        runs, wide = x.unflatten(2, (segments, n // segments)), torch.promote_types(x.dtype, torch.float32)
        means = runs.sum(dim=3, dtype=wide) / (n // segments)
        return means, torch.ones(b, segments, dtype=torch.bool, device=x.device)
    x = at_least_single(_erase(x, mask))
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
    # A product with a matrix of zeros and ones is deterministic, which scattering on a GPU is not.
    sums = einsum(member.to(x.dtype), x, "b r n, b h n c -> b h r c")
    return sums / rearrange(count.clamp(min=1), "b r -> b 1 r 1"), count > 0


def normed(
    x: Float[Tensor, "b h n c"],
    weight: Float[Tensor, "c c"],
    bias: Float[Tensor, " c"],
    mask: Bool[Tensor, "b n"] | None,
    eps: float,
) -> Float[Tensor, "b h n c"]:
    """norm(W x_i + b) of every token, which `normed_means` averages."""
    return F.layer_norm(F.linear(_erase(x, mask), weight.to(x.dtype), bias.to(x.dtype)), bias.shape, eps=eps)


def softmax_pooling(
    a: Float[Tensor, "b h n r"], x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None
) -> Float[Tensor, "b h r c"]:
    a = at_least_single(a)
    if mask is None:
        return a.softmax(dim=2).to(x.dtype).mT @ x
    hidden = ~mask[:, None, :, None]
    p = a.masked_fill(hidden, torch.finfo(a.dtype).min).softmax(dim=2).masked_fill(hidden, 0)
    return p.to(x.dtype).mT @ x


def running_mean(x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b h n c"]:
    if mask is None:
        count = torch.arange(1, x.shape[2] + 1, device=x.device)[:, None]
    else:
        count = mask.cumsum(dim=1).clamp(min=1)[:, None, :, None]
    return (running_sum(at_least_single(_erase(x, mask))) / count).to(x.dtype)


def _erase(x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b h n c"]:
    return x if mask is None else x.masked_fill(~mask[:, None, :, None], 0)
