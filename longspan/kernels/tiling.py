"""How tensors are cut into the tiles of Triton kernels, on the side of whoever launches them."""

from jaxtyping import Float
from torch import Tensor

NARROWEST = 16  # of a tensor core


def filled(width: int) -> int:
    """The next power of two that a tensor core takes.

    >>> filled(3), filled(64), filled(80)
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
