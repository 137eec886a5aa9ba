"""Pooling as it is defined: runs of tokens written out, every token normed, running sums."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.precision import at_least_single
from longspan.kernels.running_sum import running_sum


def segment_means(
    x: Float[Tensor, "b h n c"], segments: int, mask: Bool[Tensor, "b n"] | None, longer: str
) -> tuple[Float[Tensor, "b h r c"], Bool[Tensor, "b r"]]:
    means = x.new_zeros(x.shape[0], x.shape[1], segments, x.shape[3])
    occupied = torch.zeros(x.shape[0], segments, dtype=torch.bool, device=x.device)
    for b in range(x.shape[0]):
        tokens = x[b] if mask is None else x[b, :, mask[b]]
        for r, run in enumerate(_runs(tokens.shape[1], segments, longer)):
            if run:
                means[b, :, r] = tokens[:, run].mean(dim=1)
                occupied[b, r] = True
    return means, occupied


def _runs(length: int, segments: int, longer: str) -> list[list[int]]:
    """The places of each segment."""
    if longer == "last" and length >= segments:
        sizes = [length // segments + (r >= segments - length % segments) for r in range(segments)]
        return [list(range(sum(sizes[:r]), sum(sizes[: r + 1]))) for r in range(segments)]
    runs: list[list[int]] = [[] for _ in range(segments)]
    for place in range(length):
        runs[place * segments // max(length, segments)].append(place)
    return runs


def normed(
    x: Float[Tensor, "b h n c"],
    weight: Float[Tensor, "c c"],
    bias: Float[Tensor, " c"],
    mask: Bool[Tensor, "b n"] | None,
    eps: float,
) -> Float[Tensor, "b h n c"]:
    """norm(W x_i + b) of every token, which `normed_means` averages."""
    x = x if mask is None else x.masked_fill(~mask[:, None, :, None], 0)
    return F.layer_norm(F.linear(x, weight.to(x.dtype), bias.to(x.dtype)), bias.shape, eps=eps)


def running_mean(x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b h n c"]:
    if mask is None:
        count = torch.arange(1, x.shape[2] + 1, device=x.device)[:, None]
        return (running_sum(at_least_single(x)) / count).to(x.dtype)
    total = running_sum(at_least_single(x.masked_fill(~mask[:, None, :, None], 0)))
    return (total / mask.cumsum(dim=1).clamp(min=1)[:, None, :, None]).to(x.dtype)
