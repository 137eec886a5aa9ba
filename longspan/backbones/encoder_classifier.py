"""The encoder of Long Range Arena: pre-norm Transformer blocks, one pooled vector, a two-layer head.

    x <- x + Dropout(Attention(LN(x)))      x <- x + MLP(LN(x))      logits = W2 relu(W1 pool(LN(x)))

Paper: arXiv:2011.04006, with the initialisation of its released code. Rows shorter than the batch are packed, so that
padding is neither normalised, projected nor sent through an MLP. Departs from the release in: `mean` pooling averages
real tokens only, unless `hide_zeros` asks for the release's rule: id 0 is hidden from attention, yet part of the mean.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions import Attention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.packing import Layout

AttentionFactory = Callable[..., Attention]


@dataclass(frozen=True)
class Sizes:
    """Everything that decides the shape of the network."""

    dim: int
    heads: int
    layers: int
    mlp: int
    inner: int | None = None  # width of queries, keys and values when it is not dim
    dropout: float = 0.1
    attention_dropout: float = 0.1
    pooling: Literal["cls", "mean"] = "cls"
    positions: Literal["sinusoid", "learned"] = "sinusoid"
    hide_zeros: bool = False

    def __post_init__(self):
        for name in ("dim", "heads", "layers", "mlp"):
            if (number := getattr(self, name)) < 1:
                raise UsageError(f"The network needs {name} of at least 1, got {number}; give a positive number.")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= (rate := getattr(self, name)) < 1:
                raise UsageError(f"{name} is a rate from 0 to below 1, got {rate}.")


class EncoderClassifier(nn.Module):
    def __init__(self, attention: AttentionFactory, sizes: Sizes, *, vocabulary: int, classes: int, length: int):
        super().__init__()
        self.sizes = sizes
        self.cls = nn.Parameter(torch.zeros(sizes.dim)) if sizes.pooling == "cls" else None
        length = length + (self.cls is not None)
        self.embedding = nn.Embedding(vocabulary, sizes.dim)
        if sizes.positions == "learned":
            self.positions = nn.Parameter(torch.empty(length, sizes.dim))
        else:
            self.register_buffer("positions", sinusoid(length, sizes.dim), persistent=False)
        self.dropout = nn.Dropout(sizes.dropout)
        self.blocks = nn.ModuleList(Block(attention, sizes, length) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.dim, eps=1e-6)
        hidden, logits = nn.Linear(sizes.dim, sizes.mlp), nn.Linear(sizes.mlp, classes)
        self.head = nn.Sequential(hidden, nn.ReLU(), logits)
        self.apply(initialise)
        if sizes.positions == "learned":
            nn.init.normal_(self.positions, std=0.02)
        for layer in (hidden, logits):
            lecun_normal_(layer)

    def forward(self, tokens: Int[Tensor, "b n"], lengths: list[int] | None = None) -> Float[Tensor, "b classes"]:
        """`lengths` are those of the rows, known on the host; None means that all rows are full."""
        table = self.embedding.weight
        if self.cls is not None:  # one more symbol, in front of every row
            tokens, table = F.pad(tokens, (1, 0), value=len(table)), torch.cat([table, self.cls[None]])
            lengths = None if lengths is None else [n + 1 for n in lengths]
        mask = self._released_mask(tokens) if self.sizes.hide_zeros else None
        layout = None
        if lengths is None or min(lengths) == tokens.shape[1]:
            x = F.embedding(tokens, table) + self.positions[: tokens.shape[1]]
        else:
            if mask is not None:
                raise UsageError("hide_zeros needs rows of one length, but this batch is padded; leave it off here.")
            layout = Layout.of_lengths(lengths, tokens.shape[1], tokens.device)
            x = F.embedding(layout.pack(tokens), table) + self.positions[layout.index % tokens.shape[1]]
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, layout, mask)
        return self.head(self._pool(self.norm(x), layout))

    def compile_parts(self) -> None:
        """Let torch.compile fuse each block, for any number of tokens; worth its half minute in a long run on a GPU."""
        for block in self.blocks:
            block.compile(dynamic=True)

    def _pool(self, x: Float[Tensor, "..."], layout: Layout | None) -> Float[Tensor, "b d"]:
        if self.cls is not None:
            return x[:, 0] if layout is None else x[layout.offsets[:-1].long()]
        if layout is None:
            return x.mean(dim=1)
        return layout.unpack(x).sum(dim=1) / layout.mask.sum(dim=1, keepdim=True)

    def _released_mask(self, tokens: Int[Tensor, "b n"]) -> Bool[Tensor, "b n"]:
        """By the release's rule: id 0 is padding, and the first real token decides for the class token before it."""
        mask = tokens > 0
        return mask if self.cls is None else torch.cat([mask[:, 1:2], mask[:, 1:]], dim=1)


class Block(nn.Module):
    """One pre-norm block with its slot, on padded [b n d] or packed [t d] tokens alike."""

    def __init__(self, attention: AttentionFactory, sizes: Sizes, length: int):
        super().__init__()
        shell = {"inner": sizes.inner, "bias": False, "dropout": sizes.attention_dropout, "max_length": length}
        self.attention_norm = nn.LayerNorm(sizes.dim, eps=1e-6)
        self.attention = attention(sizes.dim, sizes.heads, Pattern.NONCAUSAL_SELF, **shell)
        self.mlp_norm = nn.LayerNorm(sizes.dim, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(sizes.dim, sizes.mlp),
            nn.GELU(approximate="tanh"),
            nn.Dropout(sizes.dropout),
            nn.Linear(sizes.mlp, sizes.dim),
            nn.Dropout(sizes.dropout),
        )
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(
        self, x: Float[Tensor, "*tokens d"], layout: Layout | None, mask: Bool[Tensor, "b n"] | None
    ) -> Float[Tensor, "*tokens d"]:
        h = self.attention_norm(x)
        y = self.attention(h, mask=mask) if layout is None else self.attention.packed(h, layout)
        x = x + self.dropout(y)
        return x + self.mlp(self.mlp_norm(x))


def initialise(module: nn.Module) -> None:
    """The one place that decides initial weights; what a mechanism adds beyond its projections it draws itself."""
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight)
    elif isinstance(module, Attention):
        for projection in module.projections():
            nn.init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)
    elif isinstance(module, Block):
        for layer in module.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.normal_(layer.bias, std=1e-6)


def lecun_normal_(layer: nn.Linear) -> None:
    """Truncated normal of variance 1 / inputs, and no bias; cutting at two leaves 0.88 of a deviation of one."""
    std = layer.in_features**-0.5 / 0.87962566103423978
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    nn.init.zeros_(layer.bias)


def sinusoid(length: int, dim: int) -> Float[Tensor, "n d"]:
    """Sines on even channels, cosines on odd ones, wavelengths from 2 pi to 10000 * 2 pi."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = torch.exp(-torch.log(torch.tensor(10_000.0, dtype=torch.float64)) * torch.arange(0, dim, 2) / dim)
    angle = position * frequency
    waves = torch.stack([angle.sin(), angle.cos()], dim=-1)
    return rearrange(waves, "n half two -> n (half two)")[:, :dim].float()
