"""Long convolution: every token sums all earlier ones, weighted by their distance; on request the later ones too.

    y_t = sum_{s <= t} kernel_{t-s} u_s  +  sum_{s > t} reverse_{s-t-1} u_s

The reverse kernel begins at the next token, so that only one of the two sees the present. Axes before the last
broadcast. It runs in float32 or better, through the fast Fourier transform in O(n log n): a circle of at least 2n
points keeps the ends apart, and the reverse kernel lies on it counting back from the last point, which is lag -1.
`reference` defines the answer.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.long_convolution import reference
from longspan.kernels.precision import at_least_single, without_autocast


def long_convolution(
    u: Float[Tensor, "*u t"],
    kernel: Float[Tensor, "*k t"],
    reverse: Float[Tensor, "*k t"] | None = None,
    *,
    impl: Literal["auto", "reference"] = "auto",
) -> Float[Tensor, "*y t"]:
    with without_autocast(u):
        u, kernel = at_least_single(u), at_least_single(kernel)
        reverse = None if reverse is None else at_least_single(reverse)
        if impl == "reference":
            return reference.long_convolution(u, kernel, reverse)
        length = u.shape[-1]
        if length == 0:
            return u * kernel
        circle = fast_length(2 * length)
        whole = F.pad(kernel, (0, circle - length))
        if reverse is not None:
            whole = whole + F.pad(reverse.flip(-1), (circle - length, 0))
        spectrum = torch.fft.rfft(u, n=circle) * torch.fft.rfft(whole, n=circle)
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
