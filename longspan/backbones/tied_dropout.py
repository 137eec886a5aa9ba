"""Dropout that is tied over positions: a channel of a row is dropped at all its tokens or at none (S4, S5)."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from longspan.kernels.packing import Layout


class TiedDropout(nn.Module):
    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "*tokens d"], layout: Layout | None = None) -> Float[Tensor, "*tokens d"]:
        """Padded [b n d], or packed [t d] with their layout; [b d] is one token of each row."""
        if not self.training or not self.rate:
            return x
        if layout is not None:
            rows, width = layout.mask.shape
            return x * F.dropout(x.new_ones(rows, x.shape[-1]), self.rate)[layout.index // width]
        one_token = (x.shape[0], *(1,) * (x.ndim - 2), x.shape[-1])
        return x * F.dropout(x.new_ones(one_token), self.rate)


def make_dropout(rate: float, tied: bool) -> nn.Module:
    return TiedDropout(rate) if tied else nn.Dropout(rate)


def dropped(dropout: nn.Module, x: Tensor, layout: Layout | None) -> Tensor:
    return dropout(x, layout) if isinstance(dropout, TiedDropout) else dropout(x)
