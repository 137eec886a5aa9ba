"""What the two speech networks share: scaled positions, convolutions over places, fairseq's initialisation.

    x + alpha P      P fairseq's sinusoids, zeros at padding; alpha is learned and starts at 1

`Pads` says what a convolution sees beyond the end of a row. In fairseq, which masks padding in attention only, it sees
whatever is there ("seen"), so that a row depends on how far its batch is padded; with "hidden" it sees zeros, as if the
row were alone.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions import Attention
from longspan.backbones.fairseq_sinusoid import fairseq_sinusoid
from longspan.core.errors import UsageError

Pads = Literal["hidden", "seen"]


class ScaledPositions(nn.Module):
    def __init__(self, places: int, dim: int):
        super().__init__()
        self.table: Tensor
        self.alpha = nn.Parameter(torch.ones(1))
        self.register_buffer("table", fairseq_sinusoid(places, dim), persistent=False)

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None, *, first: int = 0
    ) -> Float[Tensor, "b n d"]:
        """`first` is the place of the first token of the rows; padding gets zeros and takes no place."""
        stop = first + x.shape[1]
        if stop > len(self.table):
            raise UsageError(
                f"The network has {len(self.table)} places, but a row of {stop} came in; cut it, or give the network "
                "more of them with model.source_places or model.longest."
            )
        if mask is None:
            return x + self.alpha * self.table[first:stop]
        place = (mask.cumsum(dim=1) - 1).clamp(min=0) + first
        return x + self.alpha * (self.table[place] * mask[..., None])


class Convolution(nn.Conv1d):
    """`nn.Conv1d` over the places of rows [b n d], of odd width and centred.

    It runs as a 2D convolution of height 1, for which [b n d] is the channels-last layout: nothing is transposed.
    """

    def __init__(self, inputs: int, outputs: int, width: int, *, gain: float = 2**0.5):
        super().__init__(inputs, outputs, width, padding=(width - 1) // 2)
        nn.init.xavier_uniform_(self.weight, gain=gain)

    def forward(self, input: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n e"]:
        """With a mask, hidden places are read as zeros."""
        x = input if mask is None else input * mask[..., None]
        y = F.conv2d(x.mT.unsqueeze(2), self.weight.unsqueeze(2), self.bias, padding=(0, *self.padding))  # type: ignore[arg-type]
        return y.squeeze(2).mT


def initialise_attention(module: nn.Module) -> None:
    """The projections of attention as fairseq initialises them: Xavier, of half the variance for all but the last.

    Only the last one starts with a zero bias; the others keep torch's.
    """
    if isinstance(module, Attention):
        for projection in module.projections():
            last = projection is getattr(module, "out", None)
            nn.init.xavier_uniform_(projection.weight, gain=1.0 if last else 2**-0.5)
            if last and projection.bias is not None:
                nn.init.zeros_(projection.bias)
