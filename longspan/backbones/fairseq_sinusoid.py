"""Positions as fairseq makes them: all sines first, then all cosines, and the first token is at position 2.

    P[k] = [sin(p w_0) ... sin(p w_(h-1)), cos(p w_0) ... cos(p w_(h-1))]      p = k + 2      w_i = 10000^(-i / (h-1))

with h = d / 2, so that the last frequency is 1e-4 exactly; the Transformer's paper alternates sines and cosines, counts
from 0 and divides by h. Position 1 is that of padding, which gets zeros in fairseq and is not computed here.
"""

import torch
from jaxtyping import Float
from torch import Tensor

FIRST = 2  # the position of the first token


def fairseq_sinusoid(length: int, dim: int) -> Float[Tensor, "n d"]:
    """The positions of a row of `length` real tokens.

    >>> [round(float(one), 4) for one in fairseq_sinusoid(1, 8)[0, :4]]
    [0.9093, 0.0927, 0.0043, 0.0002]
    """
    half = dim // 2
    frequencies = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / max(1, half - 1))
    angles = torch.arange(FIRST, length + FIRST, dtype=torch.float64)[:, None] * frequencies
    table = torch.cat([angles.sin(), angles.cos()], dim=1)
    return torch.nn.functional.pad(table, (0, dim % 2)).float()  # an odd width ends in a zero
