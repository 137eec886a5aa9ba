"""Random numbers that belong to a row: the same in any batch, at any width and in any process.

A number is the SplitMix64 hash of a seed, the row and its place (Steele, Lea and Flood, 2014): whole tensors at once,
without the state of a generator.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # integers wrap around, as unsigned ones do
FIRST, SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def row_noise(seed: int | Int[Tensor, " 1"], rows: Int[Tensor, " b"], width: int) -> Float[Tensor, "b width"]:
    """Uniform numbers from 0 to below 1, in double precision. With a seed on the device, CUDA graphs can capture it.

    >>> few, many = row_noise(7, torch.tensor([3]), 2), row_noise(7, torch.tensor([1, 3]), 5)
    >>> bool((few == many[1:, :2]).all())
    True
    """
    key = seed if torch.is_tensor(seed) else torch.tensor(seed, device=rows.device)
    stream = _mixed(_mixed(key + GOLDEN) + rows * GOLDEN)
    place = torch.arange(1, width + 1, device=rows.device)
    return _shifted(_mixed(stream[:, None] + place * GOLDEN), 11).double() * 2.0**-53


def _mixed(z: Int[Tensor, "*any"]) -> Int[Tensor, "*any"]:
    z = (z ^ _shifted(z, 30)) * FIRST
    z = (z ^ _shifted(z, 27)) * SECOND
    return z ^ _shifted(z, 31)


def _shifted(z: Int[Tensor, "*any"], by: int) -> Int[Tensor, "*any"]:
    """Shifted right, filled with zeros."""
    return (z >> by) & ((1 << (64 - by)) - 1)
