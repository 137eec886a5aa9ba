"""The smallest network with slots of three patterns: an encoder of two layers, a decoder of one."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from longspan.attentions import Pattern
from longspan.backbones.slots import AttentionFactory

LONGEST = 20
SLOTS = (
    ("encoder.0.attention", Pattern.NONCAUSAL_SELF),
    ("encoder.1.attention", Pattern.NONCAUSAL_SELF),
    ("decoder.attention", Pattern.CAUSAL_SELF),
    ("cross.attention", Pattern.CAUSAL_CROSS),
)


class Layer(nn.Module):
    """One slot with a residual connection."""

    def __init__(self, attention: AttentionFactory, dim: int, pattern: Pattern):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attention = attention(dim, 2, pattern, max_length=LONGEST, max_context=LONGEST)

    def forward(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"] | None = None
    ) -> Float[Tensor, "b n d"]:
        return x + self.attention(self.norm(x), context)


class Toy(nn.Module):
    """From a sequence to the same sequence, one symbol at a time."""

    def __init__(self, attention: AttentionFactory, dim: int = 8, vocabulary: int = 24):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.positions = nn.Parameter(0.1 * torch.randn(LONGEST, dim))
        self.encoder = nn.ModuleList(Layer(attention, dim, Pattern.NONCAUSAL_SELF) for _ in range(2))
        self.decoder = Layer(attention, dim, Pattern.CAUSAL_SELF)
        self.cross = Layer(attention, dim, Pattern.CAUSAL_CROSS)
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, source: Int[Tensor, "b m"], target: Int[Tensor, "b n"]) -> Float[Tensor, "b n v"]:
        x = self.embedding(source) + self.positions[: source.shape[1]]
        for layer in self.encoder:
            x = layer(x)
        y = self.decoder(self.embedding(target) + self.positions[: target.shape[1]])
        return self.head(self.cross(y, x))
