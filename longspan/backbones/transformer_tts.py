"""Transformer-TTS: characters or phones in, a spectrogram out, four frames a step.

    encoder   x = W conv(E[token]) + alpha P      x <- x + Self(LN(x))     x <- x + MLP(LN(x))     noncausal_self
    decoder   y = W prenet(previous step) + alpha' P                         causal_self, causal_cross
              y <- y + Self(LN(y))      y <- y + Cross(LN(y), LN(x))      y <- y + MLP(LN(y))
    out       step = W LN(y)      stop = w LN(y)      mel = step + postnet(step)

A step is `packed` frames side by side. The two dropouts of the pre-net are on at inference too: what is fed back is
blurred, and the decoder must attend to the text. Outside of training their masks are drawn for (row, step), so that
they do not depend on the batch, and are the same whether steps are computed one by one or all at once.

Papers: arXiv:1809.08895, arXiv:2210.07661 (CAB), which runs fairseq's implementation. Departs from fairseq in: with
`pads="hidden"` convolutions and batch norms see no padding (`speech_layers.py`), and with `together=False` a row ends
by itself and what follows its end does not reach the post-net.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions import DecodeState, Pattern
from longspan.backbones.batch_norm import BatchNorm
from longspan.backbones.carrying import carried_by_layers
from longspan.backbones.compiling import compile_each
from longspan.backbones.continuous import Ending, generate
from longspan.backbones.sizes import check_sizes
from longspan.backbones.slots import AttentionFactory, adds_loss, mlp_beside
from longspan.backbones.speech_layers import Convolution, Pads, ScaledPositions, initialise_attention
from longspan.kernels.packing import real
from longspan.kernels.row_noise import row_noise

PAD = 1
MOST_STEPS = 1 << 20  # of a row, to index its noise


@dataclass(frozen=True)
class Sizes:
    """Everything that decides the shape of the network, and how it generates; `longest` counts steps."""

    dim: int = 512
    heads: int = 4
    layers: int = 6  # of the encoder, and as many of the decoder
    mlp: int = 2048
    convolutions: int = 3  # before the encoder
    postnet: int = 512
    postnet_layers: int = 5
    width: int = 5  # of all convolutions
    prenet: int = 256
    mels: int = 80
    packed: int = 4  # frames in a step
    dropout: float = 0.1
    attention_dropout: float = 0.1
    convolution_dropout: float = 0.5
    prenet_dropout: float = 0.5
    source_places: int = 1_024
    longest: int = 1_200
    together: bool = False
    pads: Pads = "hidden"

    def __post_init__(self):
        counts = ("dim", "heads", "layers", "mlp", "convolutions", "postnet", "width", "prenet", "mels", "packed")
        check_sizes(self, *counts, "source_places", "longest")

    @property
    def step(self) -> int:
        """Numbers in a step."""
        return self.mels * self.packed


class Steps(NamedTuple):
    """The prediction after each given step: before and after the post-net, and the logit of stopping."""

    before: Float[Tensor, "b s f"]
    after: Float[Tensor, "b s f"]
    stop: Float[Tensor, "b s"]


class Generated(NamedTuple):
    """Steps after the post-net, and how many belong to each row."""

    after: Float[Tensor, "b s f"]
    lengths: Int[Tensor, " b"]


@dataclass(frozen=True)
class Speaking:
    """Rows being generated: what the slots of each decoder layer remember, row numbers, the place of the next step."""

    slots: tuple[tuple[DecodeState, DecodeState], ...]
    rows: Int[Tensor, " b"]
    place: int

    def select(self, rows: Int[Tensor, " r"]) -> "Speaking":
        """Keep these rows, in this order."""
        slots = tuple((own.select(rows), cross.select(rows)) for own, cross in self.slots)
        return Speaking(slots, self.rows[rows], self.place)


class TransformerTTS(nn.Module):
    def __init__(self, attention: AttentionFactory, sizes: Sizes, *, vocabulary: int):
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Embedding(vocabulary, sizes.dim, padding_idx=PAD)
        relu, tanh = nn.init.calculate_gain("relu"), nn.init.calculate_gain("tanh")
        self.convolutions = Convolutions(sizes, [sizes.dim] * (sizes.convolutions + 1), gain=relu, last=F.relu)
        self.source = nn.Linear(sizes.dim, sizes.dim)
        self.source_positions = ScaledPositions(sizes.source_places, sizes.dim)
        self.encoder = nn.ModuleList(EncoderLayer(attention, sizes) for _ in range(sizes.layers))
        self.encoder_norm = nn.LayerNorm(sizes.dim)
        self.prenet = Prenet(sizes)
        self.target = nn.Linear(sizes.prenet, sizes.dim)
        self.target_positions = ScaledPositions(sizes.longest, sizes.dim)
        self.decoder = nn.ModuleList(DecoderLayer(attention, sizes) for _ in range(sizes.layers))
        self.decoder_norm = nn.LayerNorm(sizes.dim)
        self.out, self.stop = nn.Linear(sizes.dim, sizes.step), nn.Linear(sizes.dim, 1)
        widths = [sizes.step, *[sizes.postnet] * (sizes.postnet_layers - 1), sizes.step]
        self.postnet = Convolutions(sizes, widths, gain=tanh, inner=torch.tanh)
        self.dropout = nn.Dropout(sizes.dropout)
        self.apply(initialise_attention)

    def forward(
        self,
        tokens: Int[Tensor, "b m"],
        lengths: Int[Tensor, " b"],
        target: Float[Tensor, "b s f"] | None = None,
        target_lengths: Int[Tensor, " b"] | None = None,
        *,
        rows: Int[Tensor, " b"] | None = None,
        ending: Ending | None = None,
    ) -> Steps | Generated:
        """With a target: the prediction after each of its steps but the last. Without: free-running synthesis.

        Outside of training `rows` seed the dropout of the pre-net, the same for all rows unless they are given.
        """
        memory, mask = self.encode(tokens, lengths)
        rows = torch.zeros_like(lengths) if rows is None else rows
        if target is None:
            first = memory.new_zeros(len(tokens), self.sizes.step, dtype=self.out.weight.dtype)
            ending = Ending(self.sizes.longest, self.sizes.together) if ending is None else ending
            state = self.prefill(first[:, None, :][:, :0], memory, mask, rows)[2]
            made, made_lengths = generate(first, state, self.step, ending)
            kept = None if ending.together else real(made_lengths, made.shape[1])
            return Generated(made + self.postnet(made, kept), made_lengths)
        spoken = None if target_lengths is None else real(target_lengths, target.shape[1])
        y = self._enter(F.pad(target[:, :-1], (0, 0, 1, 0)), rows)
        for layer in self.decoder:
            y = layer(y, memory, mask, spoken if adds_loss(self.decoder) else None)
        before, stop = self._leave(y)
        kept = spoken if self.sizes.pads == "hidden" else None
        return Steps(before, before + self.postnet(before, kept), stop)

    def encode(
        self, tokens: Int[Tensor, "b m"], lengths: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "b m d"], Bool[Tensor, "b m"]]:
        """What the decoder attends to, and which of it is real."""
        mask = real(lengths, tokens.shape[1])
        x = self.convolutions(self.embedding(tokens), mask if self.sizes.pads == "hidden" else None)
        x = self.dropout(self.source_positions(self.source(x), mask))
        carry = None
        for layer in self.encoder:
            x, carry = layer(x, mask, carry)
        return self.encoder_norm(x), mask

    def prefill(
        self,
        previous: Float[Tensor, "b s f"],
        memory: Float[Tensor, "b m d"],
        mask: Bool[Tensor, "b m"],
        rows: Int[Tensor, " b"],
    ) -> tuple[Float[Tensor, "b s f"], Float[Tensor, "b s"], Speaking]:
        """What follows each of the first steps (there may be none), and the state from which `step` continues."""
        y, slots = self._enter(previous, rows), []
        for layer in self.decoder:
            assert isinstance(layer, DecoderLayer)
            y, states = layer.prefill(y, memory, mask)
            slots.append(states)
        return *self._leave(y), Speaking(tuple(slots), rows, previous.shape[1])

    def step(
        self, previous: Float[Tensor, "b f"], state: Speaking
    ) -> tuple[Float[Tensor, "b f"], Float[Tensor, " b"], Speaking]:
        """What follows one more step of each row, and the logit of stopping there."""
        y, slots = self._enter(previous[:, None], state.rows, first=state.place)[:, 0], []
        for layer, states in zip(self.decoder, state.slots, strict=True):
            assert isinstance(layer, DecoderLayer)
            y, states = layer.step(y, states)
            slots.append(states)
        return *self._leave(y), Speaking(tuple(slots), state.rows, state.place + 1)

    def compile_parts(self) -> None:
        """Let torch.compile fuse each layer, for any number of places."""
        compile_each((*self.encoder, *self.decoder), dynamic=True)

    def _enter(
        self, previous: Float[Tensor, "b s f"], rows: Int[Tensor, " b"], *, first: int = 0
    ) -> Float[Tensor, "b s d"]:
        return self.dropout(self.target_positions(self.target(self.prenet(previous, rows, first)), first=first))

    def _leave(self, y: Float[Tensor, "*b d"]) -> tuple[Float[Tensor, "*b f"], Float[Tensor, "*b"]]:
        y = self.decoder_norm(y)
        return self.out(y), self.stop(y)[..., 0]


class Prenet(nn.Module):
    """Two linear maps with ReLU and a dropout that is always on."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.rate = sizes.prenet_dropout
        self.layers = nn.ModuleList([nn.Linear(sizes.step, sizes.prenet), nn.Linear(sizes.prenet, sizes.prenet)])

    def forward(self, x: Float[Tensor, "b s f"], rows: Int[Tensor, " b"], first: int) -> Float[Tensor, "b s p"]:
        """`rows` and the place of a step, `first` for the first one, decide what is dropped outside of training."""
        place = rows[:, None] * MOST_STEPS + torch.arange(first, first + x.shape[1], device=x.device)
        for seed, layer in enumerate(self.layers):
            x = F.relu(layer(x))
            if self.training:
                x = F.dropout(x, self.rate)
            else:
                kept = row_noise(seed, place.flatten(), x.shape[2]).view(x.shape) >= self.rate
                x = x * kept / (1 - self.rate)
        return x


class Convolutions(nn.Module):
    """Convolutions over places, each with a batch norm, an activation and dropout."""

    def __init__(
        self,
        sizes: Sizes,
        widths: list[int],
        *,
        gain: float,
        inner: Callable[[Tensor], Tensor] = F.relu,
        last: Callable[[Tensor], Tensor] | None = None,
    ):
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        self.convolutions = nn.ModuleList(Convolution(a, b, sizes.width, gain=gain) for a, b in pairs)
        self.norms = nn.ModuleList(BatchNorm(width) for width in widths[1:])
        self.functions = [*[inner] * (len(pairs) - 1), last]
        self.dropout = nn.Dropout(sizes.convolution_dropout)

    def forward(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n e"]:
        """With a mask, what it hides is neither seen nor counted in the statistics."""
        for convolution, norm, function in zip(self.convolutions, self.norms, self.functions, strict=True):
            x = norm(convolution(x, mask).mT, mask).mT
            x = self.dropout(x if function is None else function(x))
        return x


class EncoderLayer(nn.Module):
    """Pre-norm; its slot is noncausal_self."""

    def __init__(self, attention: AttentionFactory, sizes: Sizes):
        super().__init__()
        shell = {"dropout": sizes.attention_dropout, "max_length": sizes.source_places}
        self.attention_norm = nn.LayerNorm(sizes.dim)
        self.attention = attention(sizes.dim, sizes.heads, Pattern.NONCAUSAL_SELF, **shell)
        self.mlp = None
        if mlp_beside(self.attention):
            self.mlp_norm, self.mlp = nn.LayerNorm(sizes.dim), perceptron(sizes)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(
        self, x: Float[Tensor, "b m d"], mask: Bool[Tensor, "b m"], carry: Any = None
    ) -> tuple[Float[Tensor, "b m d"], Any]:
        """The tokens, and what the slot passes to the next layer."""
        y, carry = carried_by_layers(self.attention, self.attention_norm(x), None, mask, carry)
        x = x + self.dropout(y)
        return (x if self.mlp is None else x + self.mlp(self.mlp_norm(x))), carry


class DecoderLayer(nn.Module):
    """Pre-norm; its slots are causal_self and causal_cross.

    The padding of a target is at its end, where no real step sees it: no mask is needed.
    """

    def __init__(self, attention: AttentionFactory, sizes: Sizes):
        super().__init__()
        shell = {"dropout": sizes.attention_dropout, "max_length": sizes.longest}
        self.attention_norm = nn.LayerNorm(sizes.dim)
        self.attention = attention(sizes.dim, sizes.heads, Pattern.CAUSAL_SELF, **shell)
        self.cross_norm = nn.LayerNorm(sizes.dim)
        self.cross = attention(sizes.dim, sizes.heads, Pattern.CAUSAL_CROSS, max_context=sizes.source_places, **shell)
        self.mlp = None
        if mlp_beside(self.attention, self.cross):
            self.mlp_norm, self.mlp = nn.LayerNorm(sizes.dim), perceptron(sizes)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(
        self,
        y: Float[Tensor, "b s d"],
        memory: Float[Tensor, "b m d"],
        mask: Bool[Tensor, "b m"],
        spoken: Bool[Tensor, "b s"] | None = None,
    ) -> Float[Tensor, "b s d"]:
        """`spoken` says which steps of y are real, for a slot with a loss of its own."""
        y = y + self.dropout(self.attention(self.attention_norm(y), mask=spoken))
        y = y + self.dropout(self.cross(self.cross_norm(y), memory, mask=spoken, context_mask=mask))
        return self._rest(y)

    def prefill(
        self, y: Float[Tensor, "b s d"], memory: Float[Tensor, "b m d"], mask: Bool[Tensor, "b m"]
    ) -> tuple[Float[Tensor, "b s d"], tuple[DecodeState, DecodeState]]:
        """`forward`, and the states of both slots."""
        seen, own = self.attention.prefill(self.attention_norm(y))
        y = y + self.dropout(seen)
        seen, cross = self.cross.prefill(self.cross_norm(y), memory, context_mask=mask)
        y = y + self.dropout(seen)
        return self._rest(y), (own, cross)

    def step(
        self, y_t: Float[Tensor, "b d"], states: tuple[DecodeState, DecodeState]
    ) -> tuple[Float[Tensor, "b d"], tuple[DecodeState, DecodeState]]:
        """`forward` for one more step of each row."""
        seen, own = self.attention.step(self.attention_norm(y_t), states[0])
        y_t = y_t + self.dropout(seen)
        seen, cross = self.cross.step(self.cross_norm(y_t), states[1])
        y_t = y_t + self.dropout(seen)
        return self._rest(y_t), (own, cross)

    def _rest(self, y: Float[Tensor, "*steps d"]) -> Float[Tensor, "*steps d"]:
        """Everything after the slots, step by step."""
        return y if self.mlp is None else y + self.mlp(self.mlp_norm(y))


def perceptron(sizes: Sizes) -> nn.Sequential:
    """Two linear maps with ReLU between them and dropout after each."""
    return nn.Sequential(
        nn.Linear(sizes.dim, sizes.mlp),
        nn.ReLU(),
        nn.Dropout(sizes.dropout),
        nn.Linear(sizes.mlp, sizes.dim),
        nn.Dropout(sizes.dropout),
    )
