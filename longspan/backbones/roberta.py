"""RoBERTa-base as the Comprehensive Attention Benchmark has it: post-norm blocks over noncausal self slots.

    x = LN(E[token] + P[2 + place])      x <- LN(x + Attention(x))      x <- LN(x + MLP(x))
    logits = E LN(gelu(W x)) + b

Paper: arXiv:2210.07661 (MLM), after fairseq's `roberta_base`. Positions are learned; their first two rows belong to
padding in fairseq, stay unused but count as parameters. Departs from fairseq in: nothing else.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from einops import repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions import Attention, Pattern
from longspan.backbones.carrying import carried_by_layers
from longspan.backbones.compiling import compile_each
from longspan.backbones.gpt2 import Sizes
from longspan.backbones.slots import AttentionFactory, mlp_beside
from longspan.core.errors import UsageError
from longspan.kernels.chunked_cross_entropy import chunked_cross_entropy

OFFSET = 2  # rows of the position table before that of the first token


class RoBERTa(nn.Module):
    def __init__(self, attention: AttentionFactory, sizes: Sizes, *, vocabulary: int, length: int):
        super().__init__()
        self.sizes, self.length = sizes, length
        self.embedding = nn.Embedding(vocabulary, sizes.dim)
        self.positions = nn.Embedding(length + OFFSET, sizes.dim)
        self.norm = nn.LayerNorm(sizes.dim)
        self.dropout = nn.Dropout(sizes.dropout)
        self.blocks = nn.ModuleList(Block(attention, sizes, length) for _ in range(sizes.layers))
        self.head = nn.Sequential(nn.Linear(sizes.dim, sizes.dim), nn.GELU(), nn.LayerNorm(sizes.dim))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.apply(initialise)

    def forward(
        self,
        tokens: Int[Tensor, "b n"],
        mask: Bool[Tensor, "b n"] | None = None,
        places: Int[Tensor, "b k"] | None = None,
        target: Int[Tensor, "b k"] | None = None,
    ) -> Float[Tensor, "b k v"] | Float[Tensor, "b k"]:
        """Logits of the tokens at these places of each row (by default all); `mask` is True on real tokens.

        With targets, their negative log-likelihood in nats instead, 0 where a target is negative.
        """
        x = self.encode(tokens, mask)
        if places is not None:
            x = x.gather(1, repeat(places.long(), "b k -> b k d", d=x.shape[-1]))
        x = self.head(x)
        if target is None:
            return F.linear(x, self.embedding.weight, self.bias)
        return chunked_cross_entropy(x, self.embedding.weight, target, self.bias)

    def encode(self, tokens: Int[Tensor, "b n"], mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n d"]:
        n = tokens.shape[1]
        if n > self.length:
            raise UsageError(
                f"The network learned {self.length} positions, got a row of {n} tokens; cut it, or train a longer one."
            )
        x = self.embedding(tokens) + self.positions.weight[OFFSET : OFFSET + n]
        x, carry = self.dropout(self.norm(x)), None
        for block in self.blocks:
            x, carry = block(x, mask, carry)
        return x

    def compile_parts(self) -> None:
        """Let torch.compile fuse each block; a mechanism that cannot be compiled runs as it is, with a warning."""
        compile_each(self.blocks)


class Block(nn.Module):
    """One post-norm block with its slot."""

    def __init__(self, attention: AttentionFactory, sizes: Sizes, length: int):
        super().__init__()
        shell = {"dropout": sizes.attention_dropout, "max_length": length}
        self.attention = attention(sizes.dim, sizes.heads, Pattern.NONCAUSAL_SELF, **shell)
        self.attention_norm = nn.LayerNorm(sizes.dim)
        self.mlp = None
        if mlp_beside(self.attention):
            self.mlp = nn.Sequential(nn.Linear(sizes.dim, sizes.mlp), nn.GELU(), nn.Linear(sizes.mlp, sizes.dim))
            self.mlp_norm = nn.LayerNorm(sizes.dim)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None, carry: Any = None
    ) -> tuple[Float[Tensor, "b n d"], Any]:
        """The tokens, and what the slot passes to the next layer."""
        y, carry = carried_by_layers(self.attention, x, None, mask, carry)
        x = self.attention_norm(x + self.dropout(y))
        return (x if self.mlp is None else self.mlp_norm(x + self.dropout(self.mlp(x)))), carry


def initialise(module: nn.Module) -> None:
    """Normal weights of deviation 0.02, zero biases; a mechanism initialises what it adds beyond its projections."""
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
        return
    layers: Iterable[nn.Module] = ()
    if isinstance(module, Attention):
        layers = module.projections()
    elif isinstance(module, Block | RoBERTa):
        layers = (module.mlp or ()) if isinstance(module, Block) else module.head
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
