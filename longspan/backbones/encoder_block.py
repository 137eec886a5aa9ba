"""One block of the encoder: a slot and the MLP beside it, each with a norm before or after it.

pre     x <- x + Dropout(Attention(norm(x)))      x <- x + MLP(norm(x))
post    x <- norm(x + Dropout(Attention(x)))      x <- norm(x + MLP(x))
"""

from collections.abc import Callable, Iterator
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions import Pattern
from longspan.backbones.carrying import carried_by_layers
from longspan.backbones.encoder_sizes import Sizes
from longspan.backbones.norms import make_norm, normed
from longspan.backbones.slots import AttentionFactory, mlp_beside
from longspan.backbones.tied_dropout import dropped, make_dropout
from longspan.kernels.packing import Layout

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
}


class Block(nn.Module):
    """One block with its slot, on padded [b n d] or packed [t d] tokens alike."""

    def __init__(self, attention: AttentionFactory, sizes: Sizes, length: int):
        super().__init__()
        self.post = sizes.norm_at == "post"
        shell = {"inner": sizes.inner, "bias": sizes.projection_bias, "dropout": sizes.attention_dropout}
        self.attention_norm = make_norm(sizes)
        self.attention = attention(sizes.dim, sizes.heads, Pattern.NONCAUSAL_SELF, **shell, max_length=length)
        if sizes.positions == "rope":
            self.attention.rotate_positions()
        if sizes.mixer_dropout:
            self.attention.drop_inside(sizes.mixer_dropout, tied=sizes.dropout_tied)
        self.mlp = None
        if sizes.block != "none" and mlp_beside(self.attention):
            self.mlp_norm = make_norm(sizes)
            self.mlp = nn.Sequential(*perceptron(sizes))
        self.dropout = make_dropout(sizes.dropout, sizes.dropout_tied)

    def forward(
        self,
        x: Float[Tensor, "*tokens d"],
        layout: Layout | None,
        mask: Bool[Tensor, "b n"] | None,
        carry: Any = None,
        first: bool = False,
        real: Bool[Tensor, "*tokens"] | None = None,
    ) -> tuple[Float[Tensor, "*rows d"], Any]:
        """The output at every token, or only at the first of each row, and what the slot passes to the next layer.

        `real` says which tokens count in the statistics of a batch norm; None means all.
        """
        seen = x if self.post else normed(self.attention_norm, x, real)
        y, carry = carried_by_layers(self.attention, seen, layout, mask, carry, first=first)
        if first:
            x = x[:, 0] if layout is None else x[layout.cu_seqlens[:-1].long()]
            layout = None  # from here on there is one token per row
        x = x + dropped(self.dropout, y, layout)
        if self.post:
            x = normed(self.attention_norm, x, real)
        if self.mlp is None:
            return x, carry
        if self.post:
            return normed(self.mlp_norm, x + self._through_mlp(x, layout), real), carry
        return x + self._through_mlp(normed(self.mlp_norm, x, real), layout), carry

    def _through_mlp(self, x: Tensor, layout: Layout | None) -> Tensor:
        for layer in self.mlp or ():
            x = dropped(layer, x, layout)
        return x


class Gate(nn.Module):
    """a act(b) of channels [a, b]."""

    def __init__(self, activation: nn.Module):
        super().__init__()
        self.activation = activation

    def forward(self, x: Float[Tensor, "*tokens twice"]) -> Float[Tensor, "*tokens half"]:
        a, b = x.chunk(2, dim=-1)
        return a * self.activation(b)


def perceptron(sizes: Sizes) -> Iterator[nn.Module]:
    activation, gated = ACTIVATIONS[sizes.activation](), sizes.block == "glu"
    yield nn.Linear(sizes.dim, 2 * sizes.mlp if gated else sizes.mlp)
    yield Gate(activation) if gated else activation
    yield make_dropout(sizes.dropout, sizes.dropout_tied)
    yield nn.Linear(sizes.mlp, sizes.dim)
    yield make_dropout(sizes.dropout, sizes.dropout_tied)
