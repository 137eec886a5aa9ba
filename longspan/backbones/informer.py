"""Informer: an encoder reads the past of a series, a decoder writes its whole future in one pass.

    x = past values, embedded            x <- halve(EncoderLayer(x)) between layers        context = LN(x)
    y = the last `prefix` past values and `horizon` zeros, embedded      y <- DecoderLayer(y, context)
    forecast = W LN(y) at the last `horizon` places

An embedding is a circular convolution over three steps of all variables, plus sinusoidal positions, plus a linear map
of the time features. Layers are post-norm. Between encoder layers the sequence is distilled: convolution, batch norm,
ELU, and the largest of three neighbours at every second place. Slots: noncausal self in the encoder, causal self and
noncausal cross in the decoder.

The decoder's self slot flattens its heads as the authors' code does ("mix"): [heads, places, channels] is read as if it
were [places, heads * channels], so that a row of the output holds several places of one head. A mechanism without heads
has nothing to flatten. The decoder is therefore not causal, whatever sits in that slot; this does no harm, since it
sees no future value.

Paper: arXiv:2012.07436, with the initialisation of the authors' code: torch's own, but for the value embedding, whose
weights are normal with a variance of 2 / inputs. Departs from that code in: convolutions of width one are linear maps,
which are the same function with the same initial distribution.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from longspan.attentions import Attention, Pattern
from longspan.backbones.batch_norm import BatchNorm
from longspan.backbones.carrying import carried_by_layers
from longspan.backbones.encoder_classifier import sinusoid
from longspan.backbones.sizes import check_sizes
from longspan.backbones.slots import AttentionFactory, mlp_beside


@dataclass(frozen=True)
class Sizes:
    """Everything that decides the shape of the network except the lengths, which come from the data."""

    dim: int = 512
    heads: int = 8
    encoder_layers: int = 2
    decoder_layers: int = 1
    mlp: int = 2048
    dropout: float = 0.05
    attention_dropout: float = 0.05

    def __post_init__(self):
        check_sizes(self, "dim", "heads", "encoder_layers", "decoder_layers", "mlp")


class Informer(nn.Module):
    """`past` values are read, the last `prefix` of them once more by the decoder, and `horizon` values forecast."""

    def __init__(
        self,
        attention: AttentionFactory,
        sizes: Sizes,
        *,
        variables: int,
        time_features: int,
        past: int,
        prefix: int,
        horizon: int,
    ):
        super().__init__()
        self.past, self.prefix, self.horizon = past, prefix, horizon
        lengths = [past]
        while len(lengths) < sizes.encoder_layers:
            lengths.append(-(-lengths[-1] // 2))
        written = prefix + horizon
        self.past_embedding = Embedding(variables, time_features, past, sizes)
        self.encoder = nn.ModuleList(EncoderLayer(attention, sizes, length) for length in lengths)
        self.distil = nn.ModuleList(Distil(sizes.dim) for _ in lengths[1:])
        self.encoder_norm = nn.LayerNorm(sizes.dim)
        self.future_embedding = Embedding(variables, time_features, written, sizes)
        self.decoder = nn.ModuleList(
            DecoderLayer(attention, sizes, written, lengths[-1]) for _ in range(sizes.decoder_layers)
        )
        self.decoder_norm = nn.LayerNorm(sizes.dim)
        self.head = nn.Linear(sizes.dim, variables)

    def forward(
        self, values: Float[Tensor, "b past variables"], times: Float[Tensor, "b whole features"]
    ) -> Float[Tensor, "b horizon variables"]:
        """The forecast from past values and the time features of past and future."""
        x = self.past_embedding(values, times[:, : self.past])
        carry = None
        for layer, distil in zip(self.encoder, [*self.distil, nn.Identity()], strict=True):
            x, carry = layer(x, carry)
            x = distil(x)
        context = self.encoder_norm(x)
        start = self.past - self.prefix
        y = self.future_embedding(F.pad(values[:, start:], (0, 0, 0, self.horizon)), times[:, start:])
        for layer in self.decoder:
            y = layer(y, context)
        return self.head(self.decoder_norm(y[:, self.prefix :]))


class Embedding(nn.Module):
    """Values, positions and time features in one sum."""

    def __init__(self, variables: int, time_features: int, length: int, sizes: Sizes):
        super().__init__()
        self.values = nn.Conv1d(variables, sizes.dim, 3, padding=1, padding_mode="circular")
        self.times = nn.Linear(time_features, sizes.dim)
        self.dropout = nn.Dropout(sizes.dropout)
        self.register_buffer("positions", sinusoid(length, sizes.dim), persistent=False)
        nn.init.kaiming_normal_(self.values.weight, nonlinearity="leaky_relu")

    def forward(
        self, values: Float[Tensor, "b n variables"], times: Float[Tensor, "b n features"]
    ) -> Float[Tensor, "b n d"]:
        return self.dropout(self.values(values.mT).mT + self.positions + self.times(times))


class Distil(nn.Module):
    """Halves the sequence: a convolution, then max pooling over three neighbours with stride 2."""

    def __init__(self, dim: int):
        super().__init__()
        self.convolution = nn.Conv1d(dim, dim, 3, padding=1, padding_mode="circular")
        self.norm = BatchNorm(dim)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b half d"]:
        x = F.elu(self.norm(self.convolution(x.mT)))
        return F.max_pool1d(x, 3, stride=2, padding=1).mT


class EncoderLayer(nn.Module):
    def __init__(self, attention: AttentionFactory, sizes: Sizes, length: int):
        super().__init__()
        shell = {"dropout": sizes.attention_dropout, "max_length": length}
        self.attention = attention(sizes.dim, sizes.heads, Pattern.NONCAUSAL_SELF, **shell)
        self.attention_norm = nn.LayerNorm(sizes.dim)
        self.mlp = None
        if mlp_beside(self.attention):
            self.mlp, self.mlp_norm = perceptron(sizes), nn.LayerNorm(sizes.dim)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: Float[Tensor, "b n d"], carry: Any = None) -> tuple[Float[Tensor, "b n d"], Any]:
        """The tokens, and what the slot passes to the next layer."""
        y, carry = carried_by_layers(self.attention, x, carry=carry)
        x = self.attention_norm(x + self.dropout(y))
        return (x if self.mlp is None else self.mlp_norm(x + self.mlp(x))), carry


class DecoderLayer(nn.Module):
    def __init__(self, attention: AttentionFactory, sizes: Sizes, length: int, context: int):
        super().__init__()
        shell = {"dropout": sizes.attention_dropout, "max_length": length}
        self.attention = mixing(attention(sizes.dim, sizes.heads, Pattern.CAUSAL_SELF, **shell))
        self.attention_norm = nn.LayerNorm(sizes.dim)
        self.cross = attention(sizes.dim, sizes.heads, Pattern.NONCAUSAL_CROSS, **shell, max_context=context)
        self.cross_norm = nn.LayerNorm(sizes.dim)
        self.mlp = None
        if mlp_beside(self.attention, self.cross):
            self.mlp, self.mlp_norm = perceptron(sizes), nn.LayerNorm(sizes.dim)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, y: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"]) -> Float[Tensor, "b n d"]:
        y = self.attention_norm(y + self.dropout(self.attention(y)))
        y = self.cross_norm(y + self.dropout(self.cross(y, context)))
        return y if self.mlp is None else self.mlp_norm(y + self.mlp(y))


def perceptron(sizes: Sizes) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(sizes.dim, sizes.mlp),
        nn.GELU(),
        nn.Dropout(sizes.dropout),
        nn.Linear(sizes.mlp, sizes.dim),
        nn.Dropout(sizes.dropout),
    )


def mixing(attention: Attention) -> Attention:
    """The same slot with its heads flattened the authors' way, just before the output projection."""
    out = getattr(attention, "out", None)
    if isinstance(out, nn.Linear) and hasattr(attention, "value"):  # a mechanism with values has them head by head
        out.register_forward_pre_hook(partial(_flatten, attention.heads))
    return attention


def _flatten(heads: int, out: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """[places, heads * channels] laid out again as [heads, places, channels] and read in rows of the same width."""
    (y,) = inputs
    mixed = rearrange(y, "b n (h e) -> b (h n e)", h=heads)
    return (rearrange(mixed, "b (n d) -> b n d", n=y.shape[1]),)
