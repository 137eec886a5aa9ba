"""Filling up: rows brought to a whole number of blocks by zeros behind the last token."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def fill_up(x: Float[Tensor, "b h n c"], length: int) -> Float[Tensor, "b h length c"]:
    # Contiguous first: where nothing is missing padding only copies, strides and all, while a compiled graph for any
    # length takes its result to be contiguous.
    return F.pad(x.contiguous(), (0, 0, 0, length - x.shape[2]))
