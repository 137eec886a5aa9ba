"""Nearest and farthest points by all distances, of a few queries at a time."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

AT_ONCE = {"cpu": 2**17}  # distances, which stay in its cache
OTHERWISE = 2**24


def squared(x: Float[Tensor, "*rows 3"]) -> Float[Tensor, "*rows"]:
    """The squared length, in the same order of additions everywhere, so that ties are ties."""
    x, y, z = x.unbind(dim=-1)
    return x * x + y * y + z * z


def nearest(a: Float[Tensor, "b n 3"], b: Float[Tensor, "b m 3"]) -> Int[Tensor, "b n"]:
    return torch.cat([distance.argmin(dim=-1) for distance in _distances(a, b)], dim=1)


def nearest_both_ways(
    a: Float[Tensor, "b n 3"], b: Float[Tensor, "b m 3"]
) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b m"]]:
    return nearest(a, b), nearest(b, a)


def k_nearest(query: Float[Tensor, "b n 3"], source: Float[Tensor, "b m 3"], k: int) -> Int[Tensor, "b n k"]:
    return torch.cat([_smallest(distance, k) for distance in _distances(query, source)], dim=1)


def farthest_points(x: Float[Tensor, "b n 3"], allowed: Bool[Tensor, "b n"], k: int) -> Int[Tensor, "b k"]:
    distance = torch.where(allowed, torch.inf, -1.0).to(x.dtype)
    chosen = [torch.zeros(len(x), 1, dtype=torch.long, device=x.device)]
    while len(chosen) < k:
        last = x.gather(1, chosen[-1][:, :, None].expand(-1, -1, 3))
        distance = torch.minimum(distance, squared(x - last))
        chosen.append(distance.argmax(dim=1, keepdim=True))
    return torch.cat(chosen[:k], dim=1)


def _distances(a: Float[Tensor, "b n 3"], b: Float[Tensor, "b m 3"]) -> Iterator[Float[Tensor, "b some m"]]:
    """From some points of a at a time to all of b."""
    (x, y, z), most = b[:, None].unbind(dim=-1), AT_ONCE.get(a.device.type, OTHERWISE)
    some = max(1, most // max(1, b.shape[0] * b.shape[1]))
    for part in a.split(some, dim=1):
        px, py, pz = part[:, :, None].unbind(dim=-1)
        distance = (px - x).square_()
        distance += (py - y).square_()
        distance += (pz - z).square_()
        yield distance


def _smallest(distance: Float[Tensor, "b n m"], k: int) -> Int[Tensor, "b n k"]:
    """The places of the k smallest in order.

    `topk` does not say which of two equal ones comes first, so each distance, whose bits are ordered like integers, is
    followed by its place.
    """
    place = torch.arange(distance.shape[2], device=distance.device)
    keys = distance.view(torch.int32).long().mul_(2**32).add_(place)
    return keys.topk(k, largest=False).values.remainder(2**32)
