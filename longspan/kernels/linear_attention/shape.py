"""What a launch of the Triton kernels is compiled for."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from longspan.kernels import launch
from longspan.kernels.launch import ceil, next_power_of_2

# Tokens of a tile, warps of a program and pipeline stages, by bytes per element and by how many of the two widths are
# above 64. What a program needs grows with them until it no longer fits the registers.
SINGLE = {(4, 0): (16, 8, 2), (4, 1): (16, 16, 2), (4, 2): (16, 16, 2)}
FORWARD = SINGLE | {(2, 0): (64, 4, 3), (2, 1): (64, 4, 2), (2, 2): (32, 8, 2)}
BACKWARD = SINGLE | {(2, 0): (64, 4, 2), (2, 1): (64, 4, 2), (2, 2): (32, 8, 2)}
CAUSAL_BACKWARD = BACKWARD | {(2, 1): (32, 4, 2)}
RAGGED = {(2, 0): (64, 4, 3), (2, 1): (32, 8, 2), (2, 2): (32, 8, 2)}
RAGGED |= {(4, 0): (16, 8, 3), (4, 1): (16, 16, 3), (4, 2): (16, 16, 3)}
WIDEST = 128  # the sums of one row and head, e times r, have to stay on chip


@dataclass(frozen=True)
class Shape(launch.Shape):
    heads: int
    c: int
    e: int
    size: int  # bytes per element
    feature: str
    causal: bool
    eps: float
    floor: float
    signed: bool
    ragged: bool
    begin: int = 0  # the first channel of this slice
    last: bool = True  # whether this is the last slice

    @classmethod
    def slices(
        cls,
        q: Tensor,
        v: Tensor,
        rows: int | None,
        feature: str,
        causal: bool,
        eps: float,
        floor: float,
        signed: bool,
    ) -> list["Shape"]:
        """One launch, or, for features wider than a program can hold, one for each slice of them: their results add up.

        `rows` is the number of ragged rows, None for a padded batch.
        """
        (b, heads, _, c), e = q.shape, v.shape[3]
        widths = [min(WIDEST, c - begin) for begin in range(0, c, WIDEST)] if feature == "none" else [c]
        fixed = (e, v.element_size(), feature, causal, eps, floor, signed, rows is not None)
        pairs = (b if rows is None else rows) * heads
        return [cls(pairs, heads, w, *fixed, i * WIDEST, i == len(widths) - 1) for i, w in enumerate(widths)]

    def cut(self, x: Tensor) -> Tensor:
        """The channels of this slice."""
        return x[..., self.begin : self.begin + self.c]

    @property
    def C(self) -> int:
        return next_power_of_2(self.c)

    @property
    def E(self) -> int:
        return next_power_of_2(self.e)

    @property
    def R(self) -> int:
        """Features, padded to a power of two."""
        return feature_width(self.c, self.feature)

    def constants(self, *, backward: bool = False) -> dict[str, Any]:
        tiles = FORWARD if not backward else CAUSAL_BACKWARD if self.causal else BACKWARD
        tiles = RAGGED if self.ragged and not self.causal else tiles
        T, warps, stages = tiles[self.size, (self.R > 64) + (self.E > 64)]
        widths = {"c": self.c, "e": self.e, "C": self.C, "R": self.R, "E": self.E, "T": T, "FEATURE": self.feature}
        return widths | {"RAGGED": self.ragged, "num_warps": warps, "num_stages": stages}

    @property
    def flags(self) -> dict[str, bool]:
        return {"CAUSAL": self.causal, "FIRST": self.begin == 0, "LAST": self.last}

    def sums(self, parts: int) -> tuple[int, int, int, int]:
        """M or N of each part."""
        return parts, self.pairs, self.E + 1, self.R

    def saved(self, m: int) -> tuple[int, int, int, int]:
        """The sums that the forward pass saves: those each causal part starts from, or those of whole rows."""
        return self.sums(self.parts(m) if self.causal else 1)

    def reading_parts(self, n: int) -> int:
        """Parts for programs that write no sums: ragged rows get more of them, which balances long and short rows."""
        return ceil(n, self.SHORTEST) if self.ragged and not self.causal else self.parts(n)


def feature_width(c: int, feature: str) -> int:
    return next_power_of_2(c) * (2 if feature == "cosine" else 1)
