"""The encoder of Long Range Arena: pre-norm Transformer blocks, one pooled vector, a small head.

    x <- x + Dropout(Attention(LN(x)))      x <- x + MLP(LN(x))      logits = W2 relu(W1 pool(LN(x)))

Where an example is a pair of texts, both go through the same encoder, one after the other in the batch, and the head
sees [u, v] or [u, v, u * v, u - v]; no token of one text ever sees the other.

Paper: arXiv:2011.04006, with the initialisation of its released code. Rows shorter than the batch are packed, so that
padding is neither normalised, projected nor sent through an MLP, and `mean` pooling averages real tokens only.

`hide_zeros` asks for what the release does instead: id 0 is padding, black pixels too. Every row is padded to the full
length and computed whole; attention is told which tokens are padding; they are part of the mean.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions import Attention, Pattern
from longspan.backbones.carrying import carried_by_layers
from longspan.backbones.compiling import ANY_LENGTH, compile_each
from longspan.backbones.sizes import check_sizes
from longspan.backbones.slots import AttentionFactory, mlp_beside
from longspan.core.errors import UsageError
from longspan.kernels.packing import Layout, Rows

INTENSITIES = 256  # of a gray pixel


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
    pooling: Literal["cls", "mean", "first"] = "cls"  # "first" is the output at the first real token
    positions: Literal["sinusoid", "learned"] = "sinusoid"
    hide_zeros: bool = False  # as released: id 0 is padding, which is embedded and computed like any token
    input_mode: Literal["ids", "continuous"] = "ids"  # a symbol per intensity, or the intensity itself from -1 to 1
    features: Literal["one", "two", "four"] = "one"  # what the head sees: a vector, [u, v], or [u, v, u * v, u - v]
    head_layers: int = 2

    def __post_init__(self):
        check_sizes(self, "dim", "heads", "layers", "mlp", "head_layers")
        if self.hide_zeros and self.input_mode == "continuous":
            raise UsageError("hide_zeros hides an id, but input_mode=continuous has no ids; choose one of the two.")


class EncoderClassifier(nn.Module):
    def __init__(self, attention: AttentionFactory, sizes: Sizes, *, vocabulary: int, classes: int, length: int):
        super().__init__()
        self.sizes = sizes
        self._compiled = False
        self.whole = False  # True computes every row of the last block, for probes and timing
        self.cls = nn.Parameter(torch.zeros(sizes.dim)) if sizes.pooling == "cls" else None
        self.longest = length
        length = length + (self.cls is not None)
        if sizes.input_mode == "ids":
            self.embedding = nn.Embedding(vocabulary, sizes.dim)
        else:
            self.embedding = nn.Linear(1, sizes.dim)
        if sizes.positions == "learned":
            self.positions = nn.Parameter(torch.empty(length, sizes.dim))
        else:
            self.register_buffer("positions", sinusoid(length, sizes.dim), persistent=False)
        self.dropout = nn.Dropout(sizes.dropout)
        self.blocks = nn.ModuleList(Block(attention, sizes, length) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.dim, eps=1e-6)
        self.head = nn.Sequential(*head(sizes, classes))
        self.apply(initialise)
        if sizes.positions == "learned":
            nn.init.normal_(self.positions, std=0.02)
        for layer in self.head:
            if isinstance(layer, nn.Linear):
                lecun_normal_(layer)

    def forward(
        self, tokens: Int[Tensor, "rows n"], lengths: Rows | list[int] | None = None
    ) -> Float[Tensor, "b classes"]:
        """`lengths` are those of the rows; None means that all rows are full.

        Of pairs, the first half of the rows are the first texts, the second half the second ones.
        """
        pooled = self.encode(tokens, lengths)
        if self.sizes.features != "one":
            u, v = pooled.chunk(2)
            pooled = torch.cat([u, v] if self.sizes.features == "two" else [u, v, u * v, u - v], dim=-1)
        return self.head(pooled)

    def encode(
        self, tokens: Int[Tensor, "rows n"], lengths: Rows | list[int] | None = None
    ) -> Float[Tensor, "texts d"]:
        """One vector for each row, but for a last one that only fills."""
        if isinstance(lengths, list):
            lengths = None if min(lengths) == tokens.shape[1] else Rows.of(lengths, tokens.device)
        if self.sizes.hide_zeros:
            tokens = tokens if lengths is None else tokens[: lengths.count]
            tokens, lengths = F.pad(tokens, (0, max(0, self.longest - tokens.shape[1]))), None
        if self.cls is not None:  # one more symbol, in front of every row
            tokens = F.pad(tokens, (1, 0), value=self.class_token)
            lengths = None if lengths is None else lengths.longer(by=1)
        pooled = self._encode(tokens, lengths)
        return pooled if lengths is None else pooled[: lengths.count]

    def _encode(self, tokens: Int[Tensor, "rows n"], lengths: Rows | None) -> Float[Tensor, "rows d"]:
        mask = self._released_mask(tokens) if self.sizes.hide_zeros else None
        layout = None
        if lengths is None:
            x = self._embed(tokens) + self.positions[: tokens.shape[1]]
        else:
            layout = Layout.of_rows(lengths, tokens.shape[1])
            x = self._embed(layout.pack(tokens)) + self.positions[layout.index % tokens.shape[1]]
        x, carry = self.dropout(x), None
        for block in self.blocks[: len(self.blocks) - self._early]:
            if self._compiled and layout is not None:
                for tokens_of_any_number in (x, layout.index):
                    torch._dynamo.maybe_mark_dynamic(tokens_of_any_number, 0)
            x, carry = block(x, layout, mask, carry)
        if self._early:
            return self.norm(self.blocks[-1](x, layout, mask, carry, first=True)[0])
        return self._pool(self.norm(x), layout)

    @property
    def class_token(self) -> int:
        """The id of the class token: the first that no symbol has."""
        return self.embedding.num_embeddings if isinstance(self.embedding, nn.Embedding) else INTENSITIES

    def _embed(self, tokens: Int[Tensor, "*tokens"]) -> Float[Tensor, "*tokens d"]:
        if isinstance(self.embedding, nn.Embedding):
            table = self.embedding.weight
            return F.embedding(tokens, table if self.cls is None else torch.cat([table, self.cls[None]]))
        intensity = tokens.to(self.embedding.weight.dtype) / (INTENSITIES - 1) * 2 - 1
        x = self.embedding(intensity[..., None])
        return x if self.cls is None else torch.where((tokens == self.class_token)[..., None], self.cls, x)

    def compile_parts(self) -> None:
        """Let torch.compile fuse each block; worth its half minute in a long run on a GPU.

        One graph serves all blocks and any number of packed tokens. That number is its only unknown: rows and widths
        are the same in every batch of a run, and formulas of them keep the compiler busy for minutes.

        A last block of which one row is read does little and runs as it is, unless it is the only one. So does a
        mechanism that cannot be compiled, with torch's warning.
        """
        self._compiled = True
        compile_each((self._early and self.blocks[:-1]) or self.blocks, options=ANY_LENGTH)

    @property
    def _early(self) -> bool:
        """Whether nothing of the last block is read but its first row."""
        return self.sizes.pooling != "mean" and not self.whole

    def _pool(self, x: Float[Tensor, "..."], layout: Layout | None) -> Float[Tensor, "b d"]:
        if self.sizes.pooling != "mean":
            return x[:, 0] if layout is None else x[layout.cu_seqlens[:-1].long()]
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
        self.mlp = None
        if mlp_beside(self.attention):
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
        self,
        x: Float[Tensor, "*tokens d"],
        layout: Layout | None,
        mask: Bool[Tensor, "b n"] | None,
        carry: Any = None,
        first: bool = False,
    ) -> tuple[Float[Tensor, "*rows d"], Any]:
        """Every token, or the first of each row alone, and what the slot passes to the next layer."""
        y, carry = carried_by_layers(self.attention, self.attention_norm(x), layout, mask, carry, first=first)
        if first:
            x = x[:, 0] if layout is None else x[layout.cu_seqlens[:-1].long()]
        x = x + self.dropout(y)
        return (x if self.mlp is None else x + self.mlp(self.mlp_norm(x))), carry


def head(sizes: Sizes, classes: int) -> Iterator[nn.Module]:
    """From the pooled vector, or what is made of two of them, to logits; each hidden layer half as wide as the last."""
    width = sizes.dim * {"one": 1, "two": 2, "four": 4}[sizes.features]
    hidden = sizes.mlp
    for _ in range(sizes.head_layers - 1):
        yield nn.Linear(width, hidden)
        yield nn.ReLU()
        width, hidden = hidden, max(1, hidden // 2)
    yield nn.Linear(width, classes)


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
        for layer in module.mlp or ():
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
