"""Long convolution: every token sums all earlier ones, weighted by their distance; on request the later ones too.

    y_t = sum_{s <= t} kernel_{t-s} u_s  +  sum_{s > t} reverse_{s-t-1} u_s

The reverse kernel begins at the next token, so that only one of the two sees the present. Axes before the last
broadcast. It runs in float32 or better. `reference` defines the answer.
"""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from longspan.kernels.long_convolution import fourier, reference
from longspan.kernels.precision import at_least_single, without_autocast

MODULES = {"auto": fourier, "fourier": fourier, "reference": reference}


def long_convolution(
    u: Float[Tensor, "*u t"],
    kernel: Float[Tensor, "*k t"],
    reverse: Float[Tensor, "*k t"] | None = None,
    *,
    impl: Literal["auto", "reference", "fourier"] = "auto",
) -> Float[Tensor, "*y t"]:
    """y_t = sum_{s <= t} kernel_{t-s} u_s + sum_{s > t} reverse_{s-t-1} u_s."""
    with without_autocast(u):
        u, kernel = at_least_single(u), at_least_single(kernel)
        return MODULES[impl].long_convolution(u, kernel, None if reverse is None else at_least_single(reverse))
