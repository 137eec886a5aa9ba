"""FastSpeech 2: phones in, a spectrogram out, all frames at once.

    x = E[phone] + alpha P               x <- Block(x)      four blocks over phones              noncausal_self
    x <- x + pitch row + energy row      each phone is repeated for as many frames as it lasts
    y = x + alpha' P                     y <- Block(y)      four blocks over frames              noncausal_self
    mel = W y

A block is post-norm: attention, then two convolutions of width nine. Three predictors give the duration of a phone, as
log(d + 1), its pitch and its energy. In training the true values are embedded and repeated, at inference the predicted
ones. Papers: arXiv:2006.04558, arXiv:2210.07661 (CAB), which runs fairseq's implementation. Departs from fairseq in:
with `pads="hidden"` a row does not depend on how far it is padded (`speech_layers.py`), and predicted durations are cut
off at `longest` frames.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions import Pattern
from longspan.backbones.carrying import carried_by_layers
from longspan.backbones.compiling import ANY_LENGTH, compile_each
from longspan.backbones.sizes import check_sizes
from longspan.backbones.slots import AttentionFactory, mlp_beside
from longspan.backbones.speech_layers import Convolution, Pads, ScaledPositions, initialise_attention
from longspan.kernels.packing import real
from longspan.kernels.precision import at_least_single

PAD = 1  # the padding token, whose embedding is never trained


@dataclass(frozen=True)
class Sizes:
    """Everything that decides the shape of the network; `longest` counts frames."""

    dim: int = 256
    heads: int = 2
    encoder_layers: int = 4
    decoder_layers: int = 4
    mlp: int = 1024
    width: int = 9  # of the convolutions in a block
    predictor_width: int = 3
    predictor_dropout: float = 0.5
    bins: int = 256  # rows of the pitch and of the energy embedding
    mels: int = 80
    dropout: float = 0.1
    attention_dropout: float = 0.1
    source_places: int = 1_024
    longest: int = 4_800
    pads: Pads = "hidden"

    def __post_init__(self):
        counts = ("dim", "heads", "encoder_layers", "decoder_layers", "mlp", "width", "predictor_width", "mels")
        check_sizes(self, *counts, "source_places", "longest")


class Spoken(NamedTuple):
    """The network's output: frames, how many of them belong to each row, and three predictions for each phone."""

    mel: Float[Tensor, "b n mels"]
    frames: Int[Tensor, " b"]
    log_durations: Float[Tensor, "b m"]
    pitch: Float[Tensor, "b m"]
    energy: Float[Tensor, "b m"]


class FastSpeech2(nn.Module):
    def __init__(self, attention: AttentionFactory, sizes: Sizes, *, vocabulary: int):
        super().__init__()
        self.sizes, self._compiled = sizes, False
        self.embedding = nn.Embedding(vocabulary, sizes.dim, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=sizes.dim**-0.5)
        self.phone_positions = ScaledPositions(sizes.source_places, sizes.dim)
        self.dropout = nn.Dropout(sizes.dropout)
        self.encoder = nn.ModuleList(Block(attention, sizes, sizes.source_places) for _ in range(sizes.encoder_layers))
        self.duration, self.pitch, self.energy = (Predictor(sizes) for _ in range(3))
        self.pitch_rows, self.energy_rows = (nn.Embedding(sizes.bins, sizes.dim) for _ in range(2))
        self.frame_positions = ScaledPositions(sizes.longest, sizes.dim)
        self.decoder = nn.ModuleList(Block(attention, sizes, sizes.longest) for _ in range(sizes.decoder_layers))
        self.out = nn.Linear(sizes.dim, sizes.mels)
        self.apply(initialise_attention)

    def forward(
        self,
        tokens: Int[Tensor, "b m"],
        lengths: Int[Tensor, " b"],
        tops: Float[Tensor, "2"],
        durations: Int[Tensor, "b m"] | None = None,
        pitch: Float[Tensor, "b m"] | None = None,
        energy: Float[Tensor, "b m"] | None = None,
        *,
        width: int | None = None,
    ) -> Spoken:
        """Frames of these phones, padded to `width`, or to the longest row if none is given.

        `tops` are the largest pitch and energy of the corpus, where the last bins begin. Durations, pitch and energy
        that are not given are predicted.
        """
        mask = real(lengths, tokens.shape[1])
        seen = mask if self.sizes.pads == "hidden" else None
        x = self.dropout(self.phone_positions(self.embedding(tokens), mask))
        x = self._through(self.encoder, x, mask)
        log_durations, says_pitch = self.duration(x, seen), self.pitch(x, seen)
        x = x + self.pitch_rows(bins(says_pitch if pitch is None else pitch, tops[0], self.sizes.bins))
        says_energy = self.energy(x, seen)
        x = x + self.energy_rows(bins(says_energy if energy is None else energy, tops[1], self.sizes.bins))
        if durations is None:
            durations = whole_durations(log_durations, self.sizes.longest).masked_fill(~mask, 0)
        ends = durations.cumsum(dim=1).clamp(max=self.sizes.longest)
        frames = ends[:, -1]
        y = repeat_states(x, ends, max(1, int(frames.max())) if width is None else width)
        mask = real(frames, y.shape[1])
        y = self._through(self.decoder, self.frame_positions(y, mask), mask)
        return Spoken(self.out(y), frames, log_durations, says_pitch, says_energy)

    def _through(
        self, blocks: nn.ModuleList, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"]
    ) -> Float[Tensor, "b n d"]:
        carry = None
        for block in blocks:
            if self._compiled:
                for any_number_of_places in (x, mask):
                    torch._dynamo.maybe_mark_dynamic(any_number_of_places, 1)
            x, carry = block(x, mask, mask if self.sizes.pads == "hidden" else None, carry)
        return x

    def compile_parts(self) -> None:
        """Let torch.compile fuse each block, for any number of places.

        That number is the only dynamic dimension of its graph, as in the encoder of Long Range Arena, where symbolic
        expressions of the rows as well kept the compiler busy for minutes. Every part of a batch has the same number of
        rows.
        """
        self._compiled = True
        compile_each((*self.encoder, *self.decoder), options=ANY_LENGTH)


class Block(nn.Module):
    """Attention and two convolutions, each added and normalised; its slot is noncausal_self."""

    def __init__(self, attention: AttentionFactory, sizes: Sizes, places: int):
        super().__init__()
        shell = {"dropout": sizes.attention_dropout, "max_length": places}
        self.attention = attention(sizes.dim, sizes.heads, Pattern.NONCAUSAL_SELF, **shell)
        self.attention_norm = nn.LayerNorm(sizes.dim)
        self.narrow = None
        if mlp_beside(self.attention):
            self.widen = Convolution(sizes.dim, sizes.mlp, sizes.width)
            self.narrow = Convolution(sizes.mlp, sizes.dim, sizes.width)
            self.mlp_norm = nn.LayerNorm(sizes.dim)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"], seen: Bool[Tensor, "b n"] | None, carry: Any = None
    ) -> tuple[Float[Tensor, "b n d"], Any]:
        """The tokens, and what the slot passes to the next block; `mask` is for the slot, `seen` for convolutions."""
        y, carry = carried_by_layers(self.attention, x, None, mask, carry)
        x = self.attention_norm(x + y)
        if self.narrow is not None:
            x = self.mlp_norm(x + self.dropout(self.narrow(F.relu(self.widen(x, seen)), seen)))
        return x, carry


class Predictor(nn.Module):
    """A number for each phone, from two convolutions."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.convolutions = nn.ModuleList(Convolution(sizes.dim, sizes.dim, sizes.predictor_width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(sizes.dim) for _ in range(2))
        self.dropout = nn.Dropout(sizes.predictor_dropout)
        self.out = nn.Linear(sizes.dim, 1)

    def forward(self, x: Float[Tensor, "b m d"], seen: Bool[Tensor, "b m"] | None) -> Float[Tensor, "b m"]:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = self.dropout(norm(F.relu(convolution(x, seen))))
        return self.out(x)[..., 0]


def bins(values: Float[Tensor, "b m"], top: Float[Tensor, ""], count: int) -> Int[Tensor, "b m"]:
    """How many of `count` - 1 equally spaced edges from 0 to `top` lie below each value.

    >>> bins(torch.tensor([[0, 0.5, 1, 254, 300]]), torch.tensor(254.0), 256).tolist()
    [[0, 1, 1, 254, 255]]
    """
    edges = top * torch.arange(count - 1, device=top.device) / max(1, count - 2)
    return torch.bucketize(at_least_single(values.detach()), at_least_single(edges))


def whole_durations(log_durations: Float[Tensor, "b m"], longest: int) -> Int[Tensor, "b m"]:
    """round(exp(x) - 1), half to even, from 0 to `longest`.

    >>> whole_durations(torch.tensor([[1.0, 0.4, 1.2527629684953681]]), 100).tolist()
    [[2, 0, 2]]
    """
    return at_least_single(log_durations.detach()).exp().sub(1).round().clamp(0, longest).long()


def repeat_states(x: Float[Tensor, "b m d"], ends: Int[Tensor, "b m"], width: int) -> Float[Tensor, "b width d"]:
    """The length regulator: state j of a row goes to places ends[j - 1] to ends[j] - 1, zeros follow the last.

    >>> repeat_states(torch.tensor([[[5.0], [6], [7]]]), torch.tensor([[2, 2, 3]]), 4)[0, :, 0].tolist()
    [5.0, 5.0, 7.0, 0.0]
    """
    place = torch.arange(width, device=x.device).repeat(len(x), 1)
    state = torch.searchsorted(ends, place, right=True).clamp(max=x.shape[1] - 1)
    repeated = x.gather(1, state[..., None].expand(-1, -1, x.shape[2]))
    return repeated * (place < ends[:, -1:])[..., None]
