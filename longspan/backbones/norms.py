"""Norms of tokens, by the names that recipes give them; batch norm is over real tokens only.

layer   (x - mean) / std over channels      rms     x / rms over channels
scale   g x / |x|, one number g             batch   (x - mean) / std over the real tokens of all rows and processes
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.backbones.batch_norm import BatchNorm, shared
from longspan.backbones.encoder_sizes import Sizes


class ScaleNorm(nn.Module):
    """g x / |x| with one learned length g, initialised to sqrt(d) (arXiv:1910.05895)."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.g, self.eps = nn.Parameter(torch.tensor(math.sqrt(dim))), eps

    def forward(self, x: Float[Tensor, "*tokens d"]) -> Float[Tensor, "*tokens d"]:
        return self.g * F.normalize(x, dim=-1, eps=self.eps)


class TokenBatchNorm(BatchNorm):
    """Batch norm of tokens with their channels last, padded [b n d] or packed [t d]."""

    def forward(
        self, input: Float[Tensor, "*tokens d"], mask: Bool[Tensor, "*tokens"] | None = None
    ) -> Float[Tensor, "*tokens d"]:
        tokens = input.flatten(0, -2)
        if not self.training or (mask is None and not shared()):
            return nn.BatchNorm1d.forward(self, tokens).view(input.shape)
        real = None if mask is None else mask.flatten()[None]
        return super().forward(tokens.mT[None], real)[0].mT.reshape(input.shape)


def make_norm(sizes: Sizes) -> nn.Module:
    match sizes.norm:
        case "layer":
            return nn.LayerNorm(sizes.dim, eps=1e-6)
        case "rms":
            return nn.RMSNorm(sizes.dim, eps=1e-6)
        case "scale":
            return ScaleNorm(sizes.dim)
        case "batch":
            return TokenBatchNorm(sizes.dim, momentum=sizes.norm_momentum)


def normed(norm: nn.Module, x: Tensor, real: Tensor | None) -> Tensor:
    """The normed tokens; `real` says which of them count in the statistics; None means all."""
    return norm(x, real) if isinstance(norm, TokenBatchNorm) else norm(x)
