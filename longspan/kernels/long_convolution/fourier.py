"""Long convolution through the fast Fourier transform, in O(n log n).

A circle of at least 2n positions keeps the ends apart; the reverse kernel lies on it counting back from the last
position, which is lag -1.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def long_convolution(
    u: Float[Tensor, "*u t"], kernel: Float[Tensor, "*k t"], reverse: Float[Tensor, "*k t"] | None
) -> Float[Tensor, "*y t"]:
    length = u.shape[-1]
    if length == 0:
        return u * kernel
    circle = fast_length(2 * length)
    filter_ = F.pad(kernel, (0, circle - length))
    if reverse is not None:
        filter_ = filter_ + F.pad(reverse.flip(-1), (circle - length, 0))
    spectrum = torch.fft.rfft(u, n=circle) * torch.fft.rfft(filter_, n=circle)
    return torch.fft.irfft(spectrum, n=circle)[..., :length]


def fast_length(least: int) -> int:
    """The smallest length of the form 2^a, 3 * 2^a or 5 * 2^a that is at least this; transforms of such are fast.

    Found by comparing, so that a graph compiled for one length holds for all that share its answer.

    >>> fast_length(2000)
    2048
    """
    power = 1
    while power < least:
        power *= 2
    return next(length for length in (power * 5 // 8, power * 3 // 4, power) if length >= least)
