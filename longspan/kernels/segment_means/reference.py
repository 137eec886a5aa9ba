"""The law of segment means: row by row, the real tokens cut into `segments` runs of nearly equal length."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def segment_means(
    x: Float[Tensor, "b h n c"],
    segments: int,
    mask: Bool[Tensor, "b n"] | None = None,
    *,
    longer: Literal["spread", "last"] = "spread",
) -> tuple[Float[Tensor, "b h r c"], Bool[Tensor, "b r"]]:
    means = x.new_zeros(x.shape[0], x.shape[1], segments, x.shape[3])
    occupied = torch.zeros(x.shape[0], segments, dtype=torch.bool, device=x.device)
    for b in range(x.shape[0]):
        tokens = x[b] if mask is None else x[b, :, mask[b]]
        length = tokens.shape[1]
        for r, run in enumerate(_runs(length, segments, longer)):
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
