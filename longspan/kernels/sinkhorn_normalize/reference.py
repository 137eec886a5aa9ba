"""Sinkhorn normalisation step by step; and rows alone: their softmax, and their largest entries."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def sinkhorn_normalize(
    x: Float[Tensor, "b h u v"], allowed: Bool[Tensor, "#b 1 u v"], iterations: int
) -> Float[Tensor, "b h u v"]:
    nothing = torch.finfo(x.dtype).min / 4  # finite, so that a row without anything allowed has a gradient of 0
    x = x.masked_fill(~allowed, nothing)
    for _ in range(iterations):
        for across in (3, 2):
            x = x.log_softmax(dim=across).masked_fill(~allowed, nothing)
    return x.exp()


def row_softmax(logits: Float[Tensor, "b h u v"], allowed: Bool[Tensor, "#b #h u v"]) -> Float[Tensor, "b h u v"]:
    """The softmax of each row over what is allowed, 0 where nothing is."""
    lowest = torch.finfo(logits.dtype).min / 4  # finite, so that a row without anything allowed has a gradient of 0
    return logits.masked_fill(~allowed, lowest).softmax(dim=3).masked_fill(~allowed, 0)


def top_softmax(
    logits: Float[Tensor, "b h u v"], allowed: Bool[Tensor, "#b 1 u v"], top: int
) -> tuple[Float[Tensor, "b h u r v"], Bool[Tensor, "b h u r v"]]:
    """The `top` largest entries of each row one after another, each with its softmax among those left; and where."""
    left, values, places = allowed.expand_as(logits), [], []
    for _ in range(top):
        share = row_softmax(logits, left)
        place = left & torch.zeros_like(left).scatter(3, share.argmax(dim=3, keepdim=True), True)
        values.append(share.masked_fill(~place, 0))
        places.append(place)
        left = left & ~place
    return torch.stack(values, dim=3), torch.stack(places, dim=3)
