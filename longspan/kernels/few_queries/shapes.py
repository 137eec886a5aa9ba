"""The shape of a call of kernels that set many tokens against a few: widths, and into how many parts a row is cut.

It depends on nothing but the sizes of the tensors, so that the same call gives the same bits on every device.
"""

from jaxtyping import Float
from torch import Tensor

from longspan.kernels.dispatch import lack_of_room
from longspan.kernels.launch import ceil, next_power_of_2

STEP = 64  # tokens of a part are a multiple of it, and it is one of every tile
SHORTEST = 256  # tokens of a part, lest loading and writing what is of the few cost more than they do
PROGRAMS = 512  # about as many as the largest GPUs hold at once; further cuts would only add sums to write and add up
WIDE, WIDEST, MOST = 64, 128, 64 * 128  # channels and numbers of the few, which stay on chip
WIDE_BYTES = 164 * 1024  # of memory on chip, more than small GPUs have, for more than WIDE


def parts_of(pairs: int, n: int) -> int:
    """Of a row, as few as fill the device."""
    return min(ceil(PROGRAMS, pairs), ceil(n, SHORTEST))


def share_of(parts: int, n: int) -> int:
    """Tokens of a part."""
    return ceil(ceil(n, STEP), parts) * STEP


def unsupported_reason(x: Float[Tensor, "b h n c"], few: int, *widths: int) -> str:
    """What keeps a kernel from these tokens, if anything."""
    width = max((x.shape[3], *widths))
    widest = WIDEST if x.element_size() == 2 else WIDE
    if max(width, few) > widest or next_power_of_2(few) * next_power_of_2(width) > MOST:
        return f"{few} of {width} channels do not fit on a chip; 64 of 64 do, in bfloat16 one of these may be {WIDEST}"
    if not (x.numel() and few and all(widths)):
        return "there is nothing to compare"
    return lack_of_room(x, WIDE_BYTES) if max(width, few) > WIDE else ""
