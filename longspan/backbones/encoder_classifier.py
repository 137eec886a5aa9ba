"""The encoder of Long Range Arena: pre-norm Transformer blocks, one pooled vector, a small head.

    x <- x + Dropout(Attention(LN(x)))      x <- x + MLP(LN(x))      logits = W2 relu(W1 pool(LN(x)))

Where an example is a pair of texts, both go through the same encoder, one after the other in the batch, and the head
sees [u, v] or [u, v, u * v, u - v]; no token of one text ever sees the other.

Paper: arXiv:2011.04006, with the initialisation of its released code. Rows shorter than the batch are packed, so that
padding is neither normalised, projected nor sent through an MLP, and `mean` pooling averages real tokens only.

`hide_zeros` does what the release does instead: id 0 is padding, which includes black pixels. Every row is padded to
the full length and computed as a whole; attention gets a padding mask; padding counts in the mean, as zeros under
`zero_rule="nystrom"`. Under `zero_rule="drop"` it is padding like any other: packing leaves it out, the other tokens
keep their positions, and `lengths` counts those that are left. Blocks are those of `encoder_block.py`, all settings are
in `encoder_sizes.py`.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions import Attention
from longspan.backbones.compiling import ANY_LENGTH, compile_each
from longspan.backbones.encoder_block import Block
from longspan.backbones.encoder_sizes import Sizes
from longspan.backbones.norms import make_norm, normed
from longspan.backbones.slots import AttentionFactory
from longspan.backbones.tied_dropout import dropped, make_dropout
from longspan.kernels.packing import Layout, Rows

__all__ = ["EncoderClassifier", "Sizes", "head", "initialise", "sinusoid"]

INTENSITIES = 256  # of a gray pixel


class EncoderClassifier(nn.Module):
    def __init__(self, attention: AttentionFactory, sizes: Sizes, *, vocabulary: int, classes: int, length: int):
        super().__init__()
        self.sizes = sizes
        self._compiled = False
        self.whole = False  # True computes the last block at every token, for probes and timing
        self.cls = nn.Parameter(torch.zeros(sizes.dim)) if sizes.pooling == "cls" else None
        self.longest = length
        length = length + (self.cls is not None)
        if sizes.input_mode == "ids":
            self.embedding = nn.Embedding(vocabulary, sizes.dim)
        else:
            self.embedding = nn.Linear(1, sizes.dim)
        if sizes.positions == "learned":
            self.positions = nn.Parameter(torch.empty(length, sizes.dim))
            self.positions.optim = {"kind": "embedding"}  # pyright: ignore[reportAttributeAccessIssue]
        else:
            waves = sinusoid(length, sizes.dim) if sizes.positions == "sinusoid" else None
            self.register_buffer("positions", waves, persistent=False)
        rate = sizes.dropout if sizes.embedding_dropout is None else sizes.embedding_dropout
        self.dropout = make_dropout(rate, sizes.dropout_tied)
        self.blocks = nn.ModuleList(Block(attention, sizes, length) for _ in range(sizes.layers))
        self.norm = make_norm(sizes) if sizes.norm_at == "pre" and sizes.final_norm else nn.Identity()
        self.head = nn.Sequential(*head(sizes, classes))
        self.apply(initialise)
        if isinstance(self.embedding, nn.Embedding) and sizes.embedding_std != 1:
            nn.init.normal_(self.embedding.weight, std=sizes.embedding_std)
        if sizes.positions == "learned":
            nn.init.normal_(self.positions, std=sizes.position_std)
        for layer in self.head:
            if isinstance(layer, nn.Linear):
                lecun_normal_(layer)

    def forward(
        self, tokens: Int[Tensor, "rows n"], lengths: Rows | list[int] | None = None
    ) -> Float[Tensor, "b classes"]:
        """`lengths` are those of the rows; None means that all rows are full.

        For pairs, the first half of the rows are the first texts, the second half the second ones.
        """
        pooled = self.encode(tokens, lengths)
        if self.sizes.features != "one":
            u, v = pooled.chunk(2)
            pooled = torch.cat([u, v] if self.sizes.features == "two" else [u, v, u * v, u - v], dim=-1)
        return self.head(pooled)

    def encode(
        self, tokens: Int[Tensor, "rows n"], lengths: Rows | list[int] | None = None
    ) -> Float[Tensor, "texts d"]:
        """One vector for each row, except for filler rows at the end."""
        tokens, lengths = self.prepared(tokens, lengths)
        pooled = self._encode(tokens, lengths)
        return pooled if lengths is None else pooled[: lengths.count]

    def prepared(
        self, tokens: Int[Tensor, "rows n"], lengths: Rows | list[int] | None
    ) -> tuple[Int[Tensor, "_rows _n"], Rows | None]:
        """The rows as the blocks see them: with the class token, and padded where zeros are hidden."""
        if isinstance(lengths, list):
            lengths = None if min(lengths) == tokens.shape[1] else Rows.of(lengths, tokens.device)
        if self.sizes.zero_rule == "drop":
            if lengths is None:
                lengths = Rows.of(visible(tokens).sum(dim=1).tolist(), tokens.device)
        elif self.sizes.hide_zeros:
            tokens = tokens if lengths is None else tokens[: lengths.count]
            tokens, lengths = F.pad(tokens, (0, max(0, self.longest - tokens.shape[1]))), None
        if self.cls is not None:  # one more symbol, in front of every row
            tokens = F.pad(tokens, (1, 0), value=self.class_token)
            lengths = None if lengths is None else lengths.longer(by=1)
        return tokens, lengths

    def _encode(self, tokens: Int[Tensor, "rows n"], lengths: Rows | None) -> Float[Tensor, "rows d"]:
        x, layout, mask = self.states(tokens, lengths)
        if self._early:
            return x
        if self.sizes.zero_rule == "nystrom" and mask is not None:
            x = x * mask[..., None]
        return self._pool(x, layout, mask)

    def states(
        self,
        tokens: Int[Tensor, "rows n"],
        lengths: Rows | None,
        covered: Bool[Tensor, "rows n"] | None = None,
        cover: Float[Tensor, " d"] | None = None,
    ) -> tuple[Float[Tensor, "..."], Layout | None, Bool[Tensor, "rows n"] | None]:
        """The outputs at all tokens (at the first ones, if nothing else is read), packed by the layout if any.

        If zeros are hidden, the mask says which tokens are visible. The embeddings of `covered` tokens are replaced by
        the vector `cover`.
        """
        drops, counted, layout = self.sizes.zero_rule == "drop", None, None
        mask = self._visible(tokens) if self.sizes.hide_zeros and not drops else None
        place = torch.arange(tokens.shape[1], device=tokens.device)
        if lengths is None:
            counted = mask
        else:
            layout = Layout.of_mask(self._kept(tokens), lengths) if drops else Layout.of_rows(lengths, tokens.shape[1])
            tokens, place = layout.pack(tokens), layout.index % tokens.shape[1]
            covered = None if covered is None else layout.pack(covered)
            if lengths.count < len(lengths.lengths):  # the last rows are filler
                counted = layout.index < lengths.count * layout.mask.shape[1]
        x = self._embed(tokens)
        if covered is not None and cover is not None:
            x = torch.where(covered[..., None], cover.to(x.dtype), x)
        if self.positions is not None:
            x = x + self.positions[place]
        x, carry = dropped(self.dropout, x, layout), None
        for block in self.blocks[: len(self.blocks) - self._early]:
            if self._compiled and layout is not None:
                for tokens_of_any_number in (x, layout.index):
                    torch._dynamo.maybe_mark_dynamic(tokens_of_any_number, 0)
            x, carry = block(x, layout, mask, carry, real=counted)
        if self._early:
            x, _ = self.blocks[-1](x, layout, mask, carry, first=True)
        return normed(self.norm, x, counted), layout, mask

    @property
    def class_token(self) -> int:
        """The id of the class token: the first that no symbol has."""
        return self.embedding.num_embeddings if isinstance(self.embedding, nn.Embedding) else INTENSITIES

    def _embed(self, tokens: Int[Tensor, "*tokens"]) -> Float[Tensor, "*tokens d"]:
        if isinstance(self.embedding, nn.Embedding):
            table = self.embedding.weight
            return F.embedding(tokens, table if self.cls is None else torch.cat([table, self.cls[None]]))
        intensity = self._scaled(tokens.to(self.embedding.weight.dtype) / (INTENSITIES - 1))
        x = self.embedding(intensity[..., None])
        return x if self.cls is None else torch.where((tokens == self.class_token)[..., None], self.cls, x)

    def _scaled(self, intensity: Float[Tensor, "*tokens"]) -> Float[Tensor, "*tokens"]:
        match self.sizes.pixel_scale:
            case "signed":
                return intensity * 2 - 1
            case "unit":
                return intensity
            case "standard":
                return (intensity - self.sizes.pixel_mean) / self.sizes.pixel_std

    def compile_parts(self) -> None:
        """Let torch.compile fuse each block; worth its half minute in a long run on a GPU.

        One graph serves all blocks and any number of packed tokens. That number is its only dynamic dimension: rows and
        widths are the same in every batch of a run, and symbolic expressions of them keep the compiler busy for
        minutes.

        A last block that is read only at the first token does little work and runs eagerly, unless it is the only one.
        So does a mechanism that cannot be compiled, with torch's warning.
        """
        self._compiled = True
        compile_each((self._early and self.blocks[:-1]) or self.blocks, options=ANY_LENGTH)

    @property
    def _early(self) -> bool:
        """Whether the last block is read only at the first token.

        A batch norm needs all tokens for its statistics, and the first visible token may be any.
        """
        anywhere = self.sizes.pooling == "first" and self.sizes.zero_rule == "nystrom"
        first = self.sizes.pooling in ("cls", "first") and not anywhere
        return first and self.sizes.norm != "batch" and not self.whole

    def _pool(
        self, x: Float[Tensor, "..."], layout: Layout | None, mask: Bool[Tensor, "b n"] | None
    ) -> Float[Tensor, "b d"]:
        if self.sizes.pooling in ("cls", "first"):
            if layout is not None:
                return x[layout.cu_seqlens[:-1].long()]
            if mask is None or self.sizes.zero_rule != "nystrom":
                return x[:, 0]
            return x[torch.arange(len(x), device=x.device), mask.int().argmax(dim=1)]
        if layout is not None:
            if self.sizes.pooling == "last":
                return x[layout.cu_seqlens[1:].long() - 1]
            x, mask = layout.unpack(x), layout.mask
        match self.sizes.pooling:
            case "mean":  # hidden zeros are part of it
                return x.mean(dim=1) if layout is None else x.sum(dim=1) / layout.mask.sum(dim=1, keepdim=True)
            case "sum_visible":
                return (x if mask is None else x * mask[..., None]).sum(dim=1) / (self.longest + (self.cls is not None))
            case "max":
                if mask is not None:  # of a row where nothing is visible: 0
                    x = x.masked_fill(~mask[..., None], -torch.inf).masked_fill(~mask.any(dim=1)[:, None, None], 0)
                return x.amax(dim=1)
            case _:
                if mask is None:
                    return x[:, -1]
                place = torch.arange(mask.shape[1], device=x.device)
                return x[torch.arange(len(x), device=x.device), (place * mask).amax(dim=1)]

    def _kept(self, tokens: Int[Tensor, "b n"]) -> Bool[Tensor, "b n"]:
        """What `lengths` counts under `zero_rule="drop"`: the class token, and the visible ones behind it."""
        front = int(self.cls is not None)
        return F.pad(visible(tokens[:, front:]), (front, 0), value=True)

    def _visible(self, tokens: Int[Tensor, "b n"]) -> Bool[Tensor, "b n"]:
        """Id 0 is padding. By the release's rule the class token is visible if the token after it is."""
        mask = tokens > 0
        if self.cls is None or self.sizes.zero_rule == "nystrom":
            return mask
        return torch.cat([mask[:, 1:2], mask[:, 1:]], dim=1)


def visible(tokens: Int[Tensor, "b n"]) -> Bool[Tensor, "b n"]:
    """All tokens but id 0, which is padding; in a row of nothing but zeros, the first."""
    mask = tokens > 0
    return torch.cat([mask[:, :1] | ~mask.any(dim=1, keepdim=True), mask[:, 1:]], dim=1)


def head(sizes: Sizes, classes: int) -> Iterator[nn.Module]:
    """From the pooled vector, or what is made of two of them, to logits; each hidden layer half as wide as the last."""
    width = sizes.dim * {"one": 1, "two": 2, "four": 4}[sizes.features]
    hidden = sizes.mlp if sizes.head_width == "mlp" else sizes.dim
    for _ in range(sizes.head_layers - 1):
        yield nn.Linear(width, hidden)
        yield nn.ReLU() if sizes.head_activation == "relu" else nn.GELU()
        width, hidden = hidden, max(1, hidden // 2)
    yield nn.Linear(width, classes)


def initialise(module: nn.Module) -> None:
    """The one place that decides initial weights; a mechanism initialises what it adds beyond its projections."""
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
    """Truncated normal of variance 1 / inputs, zero bias; truncation at 2 leaves a unit normal a deviation of 0.88."""
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
