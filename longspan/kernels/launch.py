"""How tensors are laid out and cut into the tiles of Triton kernels: the host side of a launch."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

NARROWEST = 16  # of a tensor core


def next_power_of_2(width: int) -> int:
    """The next power of two that a tensor core takes.

    >>> next_power_of_2(3), next_power_of_2(64), next_power_of_2(80)
    (16, 64, 128)
    """
    return max(NARROWEST, 1 << (width - 1).bit_length())


def ceil(a: int, b: int) -> int:
    """How many times b are needed to hold a.

    >>> ceil(128, 64), ceil(129, 64)
    (2, 3)
    """
    return -(-a // b)


def strides(*tensors: Float[Tensor, "..."]) -> list[int]:
    """The strides from row to row, head to head and token to token, of each tensor in turn."""
    return [stride for x in tensors for stride in x.stride()[:3]]


def readable(x: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h n c"]:
    """x in any order of rows, heads and tokens, but with contiguous channels."""
    return x if x.stride(3) == 1 else x.contiguous()


def empty_like(x: Float[Tensor, "b h n c"], width: int, dtype: torch.dtype) -> Float[Tensor, "b h n width"]:
    """An empty tensor laid out as readable x is: head by head, or token by token as a projection leaves it."""
    b, h, n, _ = x.shape
    if x.stride(3) == 1 and x.stride(1) < x.stride(2):
        return x.new_empty(b, n, h, width, dtype=dtype).transpose(1, 2)
    return x.new_empty(b, h, n, width, dtype=dtype)


def as_bytes(mask: Bool[Tensor, "b n"] | None) -> UInt8[Tensor, "b n"] | None:
    """A mask as Triton reads it."""
    return None if mask is None else mask.contiguous().view(torch.uint8)


@dataclass(frozen=True)
class Shape:
    """What a launch is compiled for, and into how many parts each row is cut.

    It depends only on the sizes of the tensors, so that a call is deterministic on every device, and torch.compile can
    use it with symbolic sizes.
    """

    STEP: ClassVar[int] = 64  # tokens of a part are a multiple of it, and it is a multiple of every tile
    SHORTEST: ClassVar[int] = 256  # tokens of a part: shorter ones cost more to merge than to compute
    PROGRAMS: ClassVar[int] = 512  # about as many as the largest GPUs hold at once

    pairs: int  # batch rows times heads

    def parts(self, n: int) -> int:
        """As few as fill the device, since each writes its partial sums."""
        return torch.sym_min(ceil(self.PROGRAMS, self.pairs), ceil(n, self.SHORTEST))  # pyright: ignore[reportReturnType]

    def tokens_per_part(self, n: int) -> int:
        return ceil(ceil(n, self.STEP), self.parts(n)) * self.STEP
