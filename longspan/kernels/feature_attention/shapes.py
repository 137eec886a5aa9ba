"""The shape of a call of the Triton kernels: widths, tiles, and into how many parts a row is cut.

It depends on nothing but the sizes of the tensors, so that the same call gives the same bits on every device, and
torch.compile can ask it for sizes that are not known yet.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.launch import ceil, next_power_of_2

# Tokens of a tile, warps of a program and tiles in flight, forth and back, by bytes of a number and how many of the two
# widths are above 64. What a program needs grows with them until it no longer fits the registers.
SINGLE = {(4, 0): (16, 8, 2), (4, 1): (16, 16, 2), (4, 2): (16, 16, 2)}
FORTH = SINGLE | {(2, 0): (64, 4, 3), (2, 1): (64, 4, 2), (2, 2): (32, 8, 2)}
BACK = SINGLE | {(2, 0): (64, 4, 2), (2, 1): (64, 4, 2), (2, 2): (32, 8, 2)}
CAUSAL_BACK = BACK | {(2, 1): (32, 4, 2)}
STEP = 64  # tokens of a part are a multiple of it, and it is one of every tile
SHORTEST = 256  # tokens of a part, lest loading or writing its sums cost more than they do
PROGRAMS = 512  # about as many as the largest GPUs hold at once; further cuts would only add sums to write and add up
WIDEST = 128  # the sums of one row and head, e times r, have to stay on chip


@dataclass(frozen=True)
class Shape:
    pairs: int  # of a row and a head
    c: int
    e: int
    size: int  # bytes of a number
    feature: str
    causal: bool
    eps: float
    floor: float
    begin: int = 0  # of the channels it takes
    last: bool = True  # whether no slice comes after it

    @classmethod
    def slices(
        cls,
        q: Float[Tensor, "b h n c"],
        v: Float[Tensor, "b h m e"],
        feature: str,
        causal: bool,
        eps: float,
        floor: float,
    ) -> list["Shape"]:
        """One call, or for features wider than a program can hold one for each slice of them: their results add up."""
        pairs, c, e = q.shape[0] * q.shape[1], q.shape[3], v.shape[3]
        widths = [min(WIDEST, c - begin) for begin in range(0, c, WIDEST)] if feature == "none" else [c]
        fixed = (e, v.element_size(), feature, causal, eps, floor)
        return [cls(pairs, w, *fixed, i * WIDEST, i == len(widths) - 1) for i, w in enumerate(widths)]

    def cut(self, *tensors: Float[Tensor, "b h _ all"]) -> list[Float[Tensor, "b h _ c"]]:
        return [x[..., self.begin : self.begin + self.c] for x in tensors]

    @property
    def C(self) -> int:
        return next_power_of_2(self.c)

    @property
    def E(self) -> int:
        return next_power_of_2(self.e)

    @property
    def R(self) -> int:
        """Features, filled up to a power of two."""
        return feature_width(self.c, self.feature)

    def constants(self, *, back: bool = False) -> dict[str, Any]:
        tiles = FORTH if not back else CAUSAL_BACK if self.causal else BACK
        T, warps, stages = tiles[self.size, (self.R > 64) + (self.E > 64)]
        widths = {"c": self.c, "e": self.e, "C": self.C, "R": self.R, "E": self.E, "T": T, "FEATURE": self.feature}
        return widths | {"num_warps": warps, "num_stages": stages}

    @property
    def flags(self) -> dict[str, bool]:
        return {"CAUSAL": self.causal, "FIRST": self.begin == 0, "LAST": self.last}

    def kept(self, m: int) -> tuple[int, int, int]:
        """What forth keeps of its sums for the way back: of each part, or of whole rows."""
        return (self.parts(m) if self.causal else 1) * self.pairs, self.E + 1, self.R

    def parts(self, n: int) -> int:
        """As few as fill the device, since each writes its sums."""
        return torch.sym_min(ceil(PROGRAMS, self.pairs), ceil(n, SHORTEST))  # pyright: ignore[reportReturnType]

    def share(self, n: int) -> int:
        """Tokens of a part."""
        return ceil(ceil(n, STEP), self.parts(n)) * STEP


def feature_width(c: int, feature: str) -> int:
    return next_power_of_2(c) * (2 if feature == "cosine" else 1)
