"""SR3: a U-Net that predicts the noise in a picture, given the same picture at a low resolution and the noise level.

    x = conv([upsampled, noisy])
    down    at each of the sides 128, 64, 32, 16, 8: two blocks, then a convolution of stride 2
    middle  a block with attention, a block without
    up      at each side again, from the smallest: three blocks on [x, skip], then nearest neighbours and a convolution
    noise = conv(swish(norm(x)))

A block is residual: conv(swish(norm(x))), plus a linear map of the embedded noise level, conv(dropout(swish(norm(.)))),
plus x, through a 1 x 1 convolution where the widths differ. At the sides in `attn_res`, and in the middle, attention
follows: x + slot(norm(x)) on the pixels row by row, with one head as wide as the channels. The skips are the output of
the first convolution, of every block on the way down and of every convolution of stride 2, last in, first out. The
noise level is the root of alpha-bar, embedded by sines and cosines of `dim` / 2 frequencies and two linear maps.

Paper: arXiv:2104.07636, with the sizes of CAB (arXiv:2210.07661), whose 21 slots are at sides 128 to 16 and in the
middle. `bias=False` leaves the biases out of queries, keys and values, as in the code base that CAB builds on; the map
after attention then has a bias of its own. Every convolution and linear map is initialised orthogonal with zero biases.
Departs from that code in: nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from longspan.attentions import Attention, Pattern
from longspan.backbones.sizes import check_sizes
from longspan.backbones.slots import AttentionFactory
from longspan.core.errors import UsageError

COLOURS = 3


@dataclass(frozen=True)
class Sizes:
    """Everything that decides the shape of the network; `attn_res` are the sides, in pixels, that have attention."""

    side: int = 128
    dim: int = 64
    multipliers: tuple[int, ...] = (1, 2, 4, 8, 8)
    blocks: int = 2
    attn_res: tuple[int, ...] = (16, 32, 64, 128)
    groups: int = 32
    bias: bool = True
    dropout: float = 0.2
    attention_dropout: float = 0.0

    def __post_init__(self):
        check_sizes(self, "side", "dim", "blocks", "groups")
        if not self.multipliers or min(self.multipliers) < 1:
            raise UsageError(f"A U-Net needs multipliers of at least 1 for its levels, got {self.multipliers}.")
        if self.dim % 2 or self.dim % self.groups:
            raise UsageError(f"dim must be even and a multiple of groups={self.groups}, got dim={self.dim}.")
        if self.side % 2 ** (len(self.multipliers) - 1):
            raise UsageError(
                f"A side is halved {len(self.multipliers) - 1} times, which {self.side} cannot be; "
                "choose another side, or fewer multipliers."
            )
        if strange := sorted(set(self.attn_res) - set(self.sides)):
            raise UsageError(f"attn_res names sides of the network, {self.sides}, got {strange}; leave those out.")

    @property
    def sides(self) -> tuple[int, ...]:
        return tuple(self.side >> level for level in range(len(self.multipliers)))

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(self.dim * multiplier for multiplier in self.multipliers)


class SR3(nn.Module):
    def __init__(self, attention: AttentionFactory, sizes: Sizes):
        super().__init__()
        levels = list(zip(sizes.sides, sizes.widths, strict=True))
        self.level = NoiseLevel(sizes.dim)
        self.first = nn.Conv2d(2 * COLOURS, sizes.dim, 3, padding=1)
        width, skips = sizes.dim, [sizes.dim]
        self.down = nn.ModuleList()
        for side, wide in levels:
            for _ in range(sizes.blocks):
                self.down.append(Block(attention, sizes, width, wide, side))
                width = wide
                skips.append(width)
            if side != sizes.sides[-1]:
                self.down.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                skips.append(width)
        self.middle = nn.ModuleList(
            Block(attention, sizes, width, width, sizes.sides[-1], attends=attends) for attends in (True, False)
        )
        self.up = nn.ModuleList()
        for side, wide in reversed(levels):
            for _ in range(sizes.blocks + 1):
                self.up.append(Block(attention, sizes, width + skips.pop(), wide, side))
                width = wide
            if side != sizes.side:
                self.up.append(Upsample(width))
        self.last = NormSwishConv(width, COLOURS, sizes)
        self.apply(initialise)

    def forward(
        self,
        upsampled: Float[Tensor, "b 3 side side"],
        noisy: Float[Tensor, "b 3 side side"],
        level: Float[Tensor, " b"],
    ) -> Float[Tensor, "b 3 side side"]:
        """The noise that `noisy` is expected to contain, where alpha-bar is `level` squared."""
        embedded = self.level(level)
        x = self.first(torch.cat([upsampled, noisy], dim=1))
        skips = [x]
        for part in self.down:
            x = part(x, embedded) if isinstance(part, Block) else part(x)
            skips.append(x)
        for block in self.middle:
            x = block(x, embedded)
        for part in self.up:
            x = part(torch.cat([x, skips.pop()], dim=1), embedded) if isinstance(part, Block) else part(x)
        return self.last(x)


class NoiseLevel(nn.Module):
    """A number from 0 to 1 as `dim` features."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim
        self.widen, self.narrow = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, level: Float[Tensor, " b"]) -> Float[Tensor, "b dim"]:
        return self.narrow(F.silu(self.widen(waves(level, self.dim))))


def waves(level: Float[Tensor, " b"], dim: int) -> Float[Tensor, "b dim"]:
    """Sines, then cosines, of the level at frequencies from 1 down to nearly 1 / 10,000, in single precision at least.

    >>> [round(float(wave), 6) for wave in waves(torch.tensor([0.5]), 64)[0, [0, 1, 32]]]
    [0.479426, 0.366223, 0.877583]
    """
    half = dim // 2
    exponent = torch.arange(half, device=level.device, dtype=level.dtype) / half
    angle = level[:, None] * 10_000**-exponent
    return torch.cat([angle.sin(), angle.cos()], dim=1)


class Block(nn.Module):
    """A residual block, with attention after it at the sides that have it."""

    def __init__(
        self,
        attention: AttentionFactory,
        sizes: Sizes,
        width: int,
        out: int,
        side: int,
        *,
        attends: bool | None = None,
    ):
        super().__init__()
        self.before = NormSwishConv(width, out, sizes)
        self.level = nn.Linear(sizes.dim, out)
        self.after = NormSwishConv(out, out, sizes, dropout=sizes.dropout)
        self.shortcut = nn.Conv2d(width, out, 1) if width != out else nn.Identity()
        attends = side in sizes.attn_res if attends is None else attends
        self.attention = PixelAttention(attention, sizes, out, side) if attends else nn.Identity()

    def forward(
        self, x: Float[Tensor, "b c side side"], level: Float[Tensor, "b dim"]
    ) -> Float[Tensor, "b e side side"]:
        y = self.before(x) + self.level(level)[:, :, None, None]
        return self.attention(self.after(y) + self.shortcut(x))


class Norm(nn.GroupNorm):
    """Group norm whose output has the dtype of its input; its sums are in single precision at least.

    Autocast would cast pictures to single precision here, and the convolution that follows would cast them back.
    """

    def forward(self, input: Float[Tensor, "b c side side"]) -> Float[Tensor, "b c side side"]:
        with torch.autocast(input.device.type, enabled=False):
            weight, bias = self.weight.to(input.dtype), self.bias.to(input.dtype)
            return F.group_norm(input, self.num_groups, weight, bias, self.eps)


class NormSwishConv(nn.Module):
    def __init__(self, width: int, out: int, sizes: Sizes, *, dropout: float = 0.0):
        super().__init__()
        self.norm = Norm(sizes.groups, width)
        self.dropout = nn.Dropout(dropout)
        self.conv = nn.Conv2d(width, out, 3, padding=1)

    def forward(self, x: Float[Tensor, "b c side side"]) -> Float[Tensor, "b e side side"]:
        return self.conv(self.dropout(F.silu(self.norm(x))))


class PixelAttention(nn.Module):
    """The slot: a mechanism on the pixels of a picture, row by row, with one head."""

    def __init__(self, attention: AttentionFactory, sizes: Sizes, width: int, side: int):
        super().__init__()
        shell: dict[str, Any] = {"dropout": sizes.attention_dropout, "max_length": side * side, "bias": sizes.bias}
        self.norm = Norm(sizes.groups, width)
        self.mix = attention(width, 1, Pattern.NONCAUSAL_SELF, **shell)
        self.bias = None if sizes.bias else nn.Parameter(torch.zeros(width))

    def forward(self, x: Float[Tensor, "b c side side"]) -> Float[Tensor, "b c side side"]:
        pixels = rearrange(self.norm(x), "b c h w -> b (h w) c")
        y = self.mix(pixels)
        y = y if self.bias is None else y + self.bias
        return x + rearrange(y, "b (h w) c -> b c h w", h=x.shape[2])


class Upsample(nn.Module):
    """Twice the side: each pixel four times, then a convolution."""

    def __init__(self, width: int):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Float[Tensor, "b c side side"]) -> Float[Tensor, "b c twice twice"]:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


def initialise(module: nn.Module) -> None:
    """The one place that decides initial weights; a mechanism initialises what it adds beyond its projections."""
    for layer in _layers(module):
        nn.init.orthogonal_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def _layers(module: nn.Module) -> Iterator[nn.Conv2d | nn.Linear]:
    """The maps directly inside a module that is not a slot, and the projections of a slot."""
    if isinstance(module, Attention):
        yield from module.projections()
    elif isinstance(module, (SR3, NoiseLevel, Block, NormSwishConv, Upsample)):
        yield from (child for child in module.children() if isinstance(child, (nn.Conv2d, nn.Linear)))
