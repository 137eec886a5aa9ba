"""The shape of a call of the Triton kernels: widths, tiles, and how rows and features are cut.

It depends on nothing but the sizes of the tensors, so that the same call gives the same bits on every device, and
torch.compile can ask it for sizes that are not known yet.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.launch import ceil, next_power_of_2

# Tokens of a tile, features of a block and warps of a program, by bytes of a number and whether a head is above 64.
# Causal programs have squares of pairs of tokens besides. Tiles of 64 tokens of wide heads Triton 3.6 compiles into
# wrong code.
TILES = {(2, False): (128, 64, 8), (2, True): (32, 32, 8), (4, False): (32, 32, 8), (4, True): (16, 32, 8)}
CAUSAL_TILES = TILES | {(2, False): (64, 64, 4), (2, True): (32, 32, 4)}
ADDED = 64  # tokens that are added up at a time, at most, where no tile asks for what it finds
ADDING_WARPS = 4
PROGRAMS = 1024  # a few for each multiprocessor of the largest GPUs; further cuts would only add sums to merge
SHORTEST = 4  # tiles of a part, lest merging its sums cost more than making them
WIDEST = 128
ON_CHIP = 163 * 1024  # bytes of memory that a program may need


@dataclass(frozen=True)
class Shape:
    pairs: int  # of a row and a head
    r: int
    c: int
    e: int
    size: int  # bytes of a number
    causal: bool

    @classmethod
    def of(
        cls, q: Float[Tensor, "b h n c"], v: Float[Tensor, "b h m e"], projection: Float[Tensor, "r c"], causal: bool
    ) -> "Shape":
        (r, c), e = projection.shape, v.shape[3]
        return cls(q.shape[0] * q.shape[1], r, c, e, v.element_size(), causal)

    @property
    def C(self) -> int:
        return next_power_of_2(self.c)

    @property
    def E(self) -> int:
        return next_power_of_2(self.e)

    @property
    def tile(self) -> tuple[int, int, int]:
        return (CAUSAL_TILES if self.causal else TILES)[self.size, max(self.C, self.E) > 64]

    @property
    def T(self) -> int:
        return self.tile[0]

    @property
    def B(self) -> int:
        return self.tile[1]

    @property
    def blocks(self) -> int:
        """Of features; the last one is filled up with some that weigh nothing."""
        return ceil(self.r, self.B)

    @property
    def R(self) -> int:
        return self.blocks * self.B

    def tiles(self, n: int) -> int:
        return ceil(n, self.T)

    def parts(self, n: int) -> int:
        """As few as fill the device, since each writes its sums."""
        enough = ceil(PROGRAMS, self.pairs * self.blocks)
        return torch.sym_min(enough, ceil(n, self.T * SHORTEST))  # pyright: ignore[reportReturnType]

    def share(self, n: int) -> int:
        """Tokens of a part."""
        return ceil(self.tiles(n), self.parts(n)) * self.T

    def kept(self, n: int) -> int:
        """Sums that are kept beside those within parts: what each causal part finds, or one of whole rows."""
        return self.parts(n) if self.causal else 1

    def states(self, n: int) -> int:
        """Sums within its part that each tile finds, if causal."""
        return self.tiles(n) if self.causal else 0

    def constants(self, *, adds_up: bool = False) -> dict[str, Any]:
        T, B, warps = self.tile
        T = min(T, ADDED) if adds_up and not self.causal else T
        widths = {"c": self.c, "e": self.e, "C": self.C, "E": self.E, "T": T, "B": B, "CAUSAL": self.causal}
        if adds_up:
            return widths | {"num_warps": ADDING_WARPS, "num_stages": 3}
        return widths | {"num_warps": warps, "num_stages": 2 if self.causal else 3}
