"""The encoder-decoder Transformer of CAB's summarization: post-norm blocks, three kinds of slots.

    encoder   x <- LN(x + Self(x))      x <- LN(x + MLP(x))                                noncausal_self
    decoder   y <- LN(y + Self(y))      y <- LN(y + Cross(y, x))      y <- LN(y + MLP(y))   causal_self, causal_cross

Tokens enter as LN(sqrt(d) embedding + learned position), logits come from a linear map without bias, and nothing is
tied: source, target and output have a matrix each. Dropout acts on the inputs and on every sublayer. Papers:
arXiv:1706.03762, arXiv:2210.07661 (CAB), which runs ParaGen's implementation. As there, embeddings, positions and the
output are initialised with deviation d^-1/2 and MLPs with torch's default for a linear map; projections of attention
are initialised as in CAB's modules (Xavier, of half the variance for queries, keys and values). ParaGen's position
table treats row 1 as that of padding and never trains it, which is `untrained_place=1`. Departs from it in: the padding
of a source is neither computed nor seen. Unverified: how CAB initialised the backbones with its own modules, which it
has not released.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions import Attention, DecodeState, Pattern
from longspan.backbones.carrying import carried_by_layers
from longspan.backbones.compiling import compile_each
from longspan.backbones.greedy import Limits, Stop, greedy
from longspan.backbones.sizes import check_sizes
from longspan.backbones.slots import AttentionFactory, adds_loss, mlp_beside
from longspan.core.errors import UsageError
from longspan.kernels.packing import Layout


@dataclass(frozen=True)
class Sizes:
    """Everything that decides the shape of the network, and how it decodes.

    `longest` and `shortest` count generated tokens; generation `stop`s row by row or for all rows at once. The position
    `untrained_place` of source and target gets no gradient.
    """

    dim: int = 512
    heads: int = 8
    layers: int = 6  # of the encoder, and as many of the decoder
    mlp: int = 2048
    dropout: float = 0.1
    attention_dropout: float = 0.1
    source_places: int = 4_096  # positions learned for the encoder
    target_places: int = 512
    longest: int = 400
    shortest: int = 200
    stop: Stop = "row"
    untrained_place: int | None = None

    def __post_init__(self):
        check_sizes(self, "dim", "heads", "layers", "mlp", "source_places", "target_places")
        if not self.shortest <= self.longest <= self.target_places:
            raise UsageError(
                f"What is written needs shortest <= longest <= target_places, got shortest={self.shortest}, "
                f"longest={self.longest} and target_places={self.target_places}."
            )
        if self.untrained_place is not None and not 0 <= self.untrained_place < self.target_places:
            raise UsageError(
                f"untrained_place is one of the {self.target_places} positions of a target, got {self.untrained_place}."
            )


@dataclass(frozen=True)
class Writing:
    """Rows being written: what the two slots of each decoder layer remember, and the place of the next token."""

    slots: tuple[tuple[DecodeState, DecodeState], ...]
    place: int

    def select(self, rows: Int[Tensor, " r"]) -> "Writing":
        """Keep these rows, in this order."""
        return Writing(tuple((own.select(rows), cross.select(rows)) for own, cross in self.slots), self.place)

    @property
    def nbytes(self) -> int:
        return sum(own.nbytes + cross.nbytes for own, cross in self.slots)


class Transformer(nn.Module):
    def __init__(self, attention: AttentionFactory, sizes: Sizes, *, vocabulary: int):
        super().__init__()
        self.sizes = sizes
        self.source = Tokens(vocabulary, sizes.source_places, sizes)
        self.target = Tokens(vocabulary, sizes.target_places, sizes)
        self.encoder = nn.ModuleList(EncoderLayer(attention, sizes) for _ in range(sizes.layers))
        self.decoder = nn.ModuleList(DecoderLayer(attention, sizes) for _ in range(sizes.layers))
        self.out = nn.Linear(sizes.dim, vocabulary, bias=False)
        nn.init.normal_(self.out.weight, std=sizes.dim**-0.5)
        self.apply(initialise)

    def forward(
        self,
        source: Int[Tensor, "b m"],
        source_lengths: list[int] | None = None,
        target: Int[Tensor, "b n"] | None = None,
        target_lengths: list[int] | None = None,
        *,
        begin: int = 0,
        limits: Limits | None = None,
    ) -> Float[Tensor, "b n v"] | Float[Tensor, "t v"] | Int[Tensor, "b t"]:
        """With a target: the logits of what follows each of its tokens (only of the real ones, if lengths are given).
        Without: what is decoded greedily within `limits` after the token `begin`.

        Lengths are those of the rows, known on the host; None means that all rows are full.
        """
        memory, mask = self.encode(source, source_lengths)
        if target is None:
            if limits is None:
                raise UsageError("The network was given neither a target nor the limits of what to write; give one.")
            first = source.new_full((len(source), 1), begin)
            return greedy(*self.prefill(first, memory, mask), self.step, limits)
        y, layout = self.target(target), None
        if target_lengths is not None:
            layout = Layout.of_lengths(target_lengths, target.shape[1], y.device)
        written = layout.mask if layout is not None and adds_loss(self.decoder) else None
        for layer in self.decoder:
            y = layer(y, memory, mask, written)
        return self.out(y if layout is None else layout.pack(y))

    def encode(
        self, source: Int[Tensor, "b m"], lengths: list[int] | None = None
    ) -> tuple[Float[Tensor, "b m d"], Bool[Tensor, "b m"] | None]:
        """What the decoder attends to, and which of it is real; None if all is."""
        layout = carry = None
        if lengths is not None and min(lengths) < source.shape[1]:
            layout = Layout.of_lengths(lengths, source.shape[1], source.device)
        x = self.source(source, layout)
        for layer in self.encoder:
            x, carry = layer(x, layout, carry)
        return (x, None) if layout is None else (layout.unpack(x), layout.mask)

    def prefill(
        self, target: Int[Tensor, "b n"], memory: Float[Tensor, "b m d"], mask: Bool[Tensor, "b m"] | None = None
    ) -> tuple[Float[Tensor, "b v"], Writing]:
        """The logits of what follows a prefix of at least one token, and the state from which `step` continues."""
        y, slots = self.target(target), []
        for layer in self.decoder:
            y, states = layer.prefill(y, memory, mask)  # type: ignore[operator]
            slots.append(states)
        return self.out(y[:, -1]), Writing(tuple(slots), target.shape[1])

    def step(self, token: Int[Tensor, " b"], state: Writing) -> tuple[Float[Tensor, "b v"], Writing]:
        """The logits of what follows one more token of each row."""
        y, slots = self.target(token[:, None], first=state.place)[:, 0], []
        for layer, states in zip(self.decoder, state.slots, strict=True):
            y, states = layer.step(y, states)  # type: ignore[operator]
            slots.append(states)
        return self.out(y), Writing(tuple(slots), state.place + 1)

    def compile_parts(self) -> None:
        """Let torch.compile fuse each layer, for any number of tokens; worth its minute in a long run on a GPU.

        A mechanism that cannot be compiled runs as it is, with torch's warning.
        """
        compile_each((*self.encoder, *self.decoder), dynamic=True)


class Tokens(nn.Module):
    """LN(sqrt(d) embedding + position), on padded tokens or on the real ones alone."""

    def __init__(self, vocabulary: int, places: int, sizes: Sizes):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, sizes.dim)
        self.positions = nn.Parameter(torch.empty(places, sizes.dim))
        self.untrained = sizes.untrained_place
        self.norm = nn.LayerNorm(sizes.dim)
        self.dropout = nn.Dropout(sizes.dropout)
        nn.init.normal_(self.embedding.weight, std=sizes.dim**-0.5)
        nn.init.normal_(self.positions, std=sizes.dim**-0.5)

    def forward(
        self, tokens: Int[Tensor, "b n"], layout: Layout | None = None, *, first: int = 0
    ) -> Float[Tensor, "*tokens d"]:
        """`first` is the place of the first token of the rows."""
        last = first + tokens.shape[1]
        if last > len(self.positions):
            raise UsageError(
                f"The network has {len(self.positions)} positions, but a row of {last} tokens came in; cut it, "
                "or give the network more with source_places or target_places."
            )
        if layout is None:
            place = torch.arange(first, last, device=tokens.device)
        else:
            tokens, place = layout.pack(tokens), layout.index % tokens.shape[1]
        x = self.embedding(tokens) * self.embedding.embedding_dim**0.5
        return self.dropout(self.norm(x + F.embedding(place, self.positions, padding_idx=self.untrained)))


class EncoderLayer(nn.Module):
    """Its slot is noncausal_self; on padded [b n d] or packed [t d] tokens alike."""

    def __init__(self, attention: AttentionFactory, sizes: Sizes):
        super().__init__()
        shell = {"dropout": sizes.attention_dropout, "max_length": sizes.source_places}
        self.attention = attention(sizes.dim, sizes.heads, Pattern.NONCAUSAL_SELF, **shell)
        self.attention_norm = nn.LayerNorm(sizes.dim)
        self.mlp = None
        if mlp_beside(self.attention):
            self.mlp, self.mlp_norm = MLP(sizes), nn.LayerNorm(sizes.dim)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(
        self, x: Float[Tensor, "*tokens d"], layout: Layout | None, carry: Any = None
    ) -> tuple[Float[Tensor, "*tokens d"], Any]:
        """The tokens, and what the slot passes to the next layer."""
        y, carry = carried_by_layers(self.attention, x, layout, None, carry)
        x = self.attention_norm(x + self.dropout(y))
        return (x if self.mlp is None else self.mlp_norm(x + self.dropout(self.mlp(x)))), carry


class DecoderLayer(nn.Module):
    """Its slots are causal_self and causal_cross.

    The padding of a target is at its end, where no real token sees it: no mask is needed.
    """

    def __init__(self, attention: AttentionFactory, sizes: Sizes):
        super().__init__()
        shell = {"dropout": sizes.attention_dropout, "max_length": sizes.target_places}
        self.attention = attention(sizes.dim, sizes.heads, Pattern.CAUSAL_SELF, **shell)
        self.attention_norm = nn.LayerNorm(sizes.dim)
        self.cross = attention(sizes.dim, sizes.heads, Pattern.CAUSAL_CROSS, max_context=sizes.source_places, **shell)
        self.cross_norm = nn.LayerNorm(sizes.dim)
        self.mlp = None
        if mlp_beside(self.attention, self.cross):
            self.mlp, self.mlp_norm = MLP(sizes), nn.LayerNorm(sizes.dim)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(
        self,
        y: Float[Tensor, "b n d"],
        memory: Float[Tensor, "b m d"],
        mask: Bool[Tensor, "b m"] | None,
        written: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        """`mask` belongs to the memory; `written` to y, whose padding is at the end, where no output sees it."""
        y = self.attention_norm(y + self.dropout(self.attention(y, mask=written)))
        y = self.cross_norm(y + self.dropout(self.cross(y, memory, mask=written, context_mask=mask)))
        return self._rest(y)

    def prefill(
        self, y: Float[Tensor, "b n d"], memory: Float[Tensor, "b m d"], mask: Bool[Tensor, "b m"] | None
    ) -> tuple[Float[Tensor, "b n d"], tuple[DecodeState, DecodeState]]:
        """`forward`, and the states of both slots."""
        seen, own = self.attention.prefill(y)
        y = self.attention_norm(y + self.dropout(seen))
        seen, cross = self.cross.prefill(y, memory, context_mask=mask)
        y = self.cross_norm(y + self.dropout(seen))
        return self._rest(y), (own, cross)

    def step(
        self, y_t: Float[Tensor, "b d"], states: tuple[DecodeState, DecodeState]
    ) -> tuple[Float[Tensor, "b d"], tuple[DecodeState, DecodeState]]:
        """`forward` for one more token of each row."""
        seen, own = self.attention.step(y_t, states[0])
        y_t = self.attention_norm(y_t + self.dropout(seen))
        seen, cross = self.cross.step(y_t, states[1])
        y_t = self.cross_norm(y_t + self.dropout(seen))
        return self._rest(y_t), (own, cross)

    def _rest(self, y: Float[Tensor, "*tokens d"]) -> Float[Tensor, "*tokens d"]:
        """Everything after the slots, position by position."""
        return y if self.mlp is None else self.mlp_norm(y + self.dropout(self.mlp(y)))


class MLP(nn.Module):
    def __init__(self, sizes: Sizes):
        super().__init__()
        self.widen, self.narrow = nn.Linear(sizes.dim, sizes.mlp), nn.Linear(sizes.mlp, sizes.dim)

    def forward(self, x: Float[Tensor, "*tokens d"]) -> Float[Tensor, "*tokens d"]:
        return self.narrow(F.gelu(self.widen(x)))


def initialise(module: nn.Module) -> None:
    """The projections of attention; a mechanism initialises everything else it has."""
    if isinstance(module, Attention):
        for projection in module.projections():
            last = projection is getattr(module, "out", None)
            nn.init.xavier_uniform_(projection.weight, gain=1.0 if last else 2**-0.5)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)
