"""How tensors are laid out and cut into the tiles of Triton kernels, on the side of whoever launches them."""

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
    """From row to row, head to head and token to token, of one tensor after the other."""
    return [stride for x in tensors for stride in x.stride()[:3]]


def readable(x: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h n c"]:
    """Any order of rows, heads and tokens will do, while the channels of a token lie side by side."""
    return x if x.stride(3) == 1 else x.contiguous()


def empty_like(x: Float[Tensor, "b h n c"], width: int, dtype: torch.dtype) -> Float[Tensor, "b h n width"]:
    """Room for a tensor laid out as readable x is: head by head, or token by token as a projection leaves it."""
    b, h, n, _ = x.shape
    if x.stride(3) == 1 and x.stride(1) < x.stride(2):
        return x.new_empty(b, n, h, width, dtype=dtype).transpose(1, 2)
    return x.new_empty(b, h, n, width, dtype=dtype)


def as_bytes(mask: Bool[Tensor, "b n"] | None) -> UInt8[Tensor, "b n"] | None:
    """A mask as Triton reads it."""
    return None if mask is None else mask.contiguous().view(torch.uint8)
