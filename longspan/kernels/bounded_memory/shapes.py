"""The shape of a call of the Triton kernels: widths, tiles, and into how many parts a row is cut.

It depends on nothing but the sizes of the tensors, so that the same call gives the same bits on every device, and
torch.compile can ask it for sizes that are not known yet.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.launch import NARROWEST, ceil, next_power_of_2

# Tokens of a tile and warps of a program, by bytes of a number and whether heads are wider than 64 or slots more than
# 16. What a program needs grows with them until it no longer fits the registers. Tiles of 64 tokens would go through
# the tensor cores a warp group at a time, and Triton 3.6 compiles that into wrong code here.
TILES = {(2, False): (32, 2), (2, True): (32, 8), (4, False): (16, 8), (4, True): (16, 8)}
STEP = 64  # tokens of a part are a multiple of it, and it is one of every tile
SHORTEST = 256  # tokens of a part, lest loading or writing its slots cost more than they do
PROGRAMS = 1024  # a few times as many as the largest GPUs hold at once; further cuts would only add slots to write
WIDEST = 128  # channels of a head
LARGEST = 64 * 64  # channels times slots: two memories of one row and head have to stay on chip
LARGE, LARGE_BYTES = 64 * 16, 160 * 1024  # above this size they need more memory there than small GPUs have


@dataclass(frozen=True)
class Shape:
    pairs: int  # of a row and a head
    c: int
    e: int
    r: int
    size: int  # bytes of a number
    causal: bool

    @classmethod
    def of(
        cls, q: Float[Tensor, "b h n c"], v: Float[Tensor, "b h m e"], control: Float[Tensor, "c r"], causal: bool
    ) -> "Shape":
        return cls(q.shape[0] * q.shape[1], q.shape[3], v.shape[3], control.shape[1], v.element_size(), causal)

    @property
    def constants(self) -> dict[str, Any]:
        C, E, R = next_power_of_2(self.c), next_power_of_2(self.e), self.slots
        T, warps = TILES[self.size, max(C, E) > 64 or R > NARROWEST]
        sizes = {"c": self.c, "e": self.e, "r": self.r, "C": C, "E": E, "R": R, "D": self.width, "T": T}
        return sizes | {"CAUSAL": self.causal, "num_warps": warps, "num_stages": 2}

    @property
    def memory(self) -> int:
        """Numbers of the larger memory."""
        return self.width * self.slots

    @property
    def width(self) -> int:
        """Channels of both memories, filled up to a power of two."""
        return max(next_power_of_2(self.c), next_power_of_2(self.e))

    @property
    def slots(self) -> int:
        return next_power_of_2(self.r)

    def kept(self, m: int) -> tuple[int, int, int, int, int]:
        """Both memories as each part finds them and as the last one leaves them; two rows are weights and levels."""
        return self.parts(m) + 1, self.pairs, 2, self.width + 2, self.slots

    def parts(self, n: int) -> int:
        """As few as fill the device, since each writes its slots."""
        return torch.sym_min(ceil(PROGRAMS, self.pairs), ceil(n, SHORTEST))  # pyright: ignore[reportReturnType]

    def share(self, n: int) -> int:
        """Tokens of a part."""
        return ceil(ceil(n, STEP), self.parts(n)) * STEP
