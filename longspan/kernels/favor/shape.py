"""What a launch of the Triton kernels is compiled for, and how rows and features are cut."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from longspan.kernels import launch
from longspan.kernels.launch import ceil, next_power_of_2

# Tokens of a tile, features of a block and warps of a program, by bytes per element and whether heads are wider than
# 64. Causal programs also hold squares of pairs of tokens. Triton 3.6 miscompiles tiles of 64 tokens of wide heads.
TILES = {(2, False): (128, 64, 8), (2, True): (32, 32, 8), (4, False): (32, 32, 8), (4, True): (16, 32, 8)}
CAUSAL_TILES = TILES | {(2, False): (64, 64, 4), (2, True): (32, 32, 4)}
SUMMED = 64  # tokens that programs of noncausal sums take at a time, at most
SUMMING_WARPS = 4
WIDEST = 128
SHARED_BYTES = 163 * 1024  # shared memory that a program may need


@dataclass(frozen=True)
class Shape(launch.Shape):
    PROGRAMS: ClassVar[int] = 1024  # a few for each multiprocessor of the largest GPUs
    SHORTEST: ClassVar[int] = 4  # in tiles

    r: int
    c: int
    e: int
    size: int  # bytes per element
    causal: bool

    @classmethod
    def of(cls, q: Tensor, v: Tensor, projection: Tensor, causal: bool) -> "Shape":
        r, c = projection.shape
        return cls(q.shape[0] * q.shape[1], r, c, v.shape[3], v.element_size(), causal)

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
    def blocks(self) -> int:
        """Blocks of features; the last one is padded with features that weigh nothing."""
        return ceil(self.r, self.tile[1])

    @property
    def R(self) -> int:
        return self.blocks * self.tile[1]

    def tiles(self, n: int) -> int:
        return ceil(n, self.tile[0])

    def parts(self, n: int) -> int:
        """As few as fill the device, since each writes its sums."""
        enough = ceil(self.PROGRAMS, self.pairs * self.blocks)
        return torch.sym_min(enough, ceil(n, self.tile[0] * self.SHORTEST))  # pyright: ignore[reportReturnType]

    def tokens_per_part(self, n: int) -> int:
        return ceil(self.tiles(n), self.parts(n)) * self.tile[0]

    def saved(self, n: int) -> tuple[int, int]:
        """How many sums are saved: those each causal part and, within its part, each tile starts from, or those of
        whole rows."""
        return (self.parts(n), self.tiles(n)) if self.causal else (1, 0)

    def constants(self, *, sums: bool = False) -> dict[str, Any]:
        T, B, warps = self.tile
        T = min(T, SUMMED) if sums and not self.causal else T
        widths = {"c": self.c, "e": self.e, "C": self.C, "E": self.E, "T": T, "B": B, "CAUSAL": self.causal}
        if sums:
            return widths | {"num_warps": SUMMING_WARPS, "num_stages": 3}
        return widths | {"num_warps": warps, "num_stages": 2 if self.causal else 3}
