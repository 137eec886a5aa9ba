"""Pseudo-inverse of softmax matrices by iteration, as the Nystrom method needs it.

    Z <- Z (13 - A Z (15 - A Z (7 - A Z))) / 4      Z_0 = A^T / (|A|_1 |A|_inf)

The rows of A sum to 1, so that |A|_inf is 1 up to rounding. `reference` defines the answer; `triton`, for float32
matrices of up to 64 rows, keeps a matrix on chip until it is inverted.
"""

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.pseudo_inverse import operator, reference

LARGEST = 64  # matrix of which a program can hold several


def pseudo_inverse(
    a: Float[Tensor, "b h r r"],
    iterations: int,
    *,
    norm: Float[Tensor, "#b #h 1 1"] | None = None,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h r r"]:
    """The iterative Moore-Penrose inverse of row-stochastic matrices; `norm` takes the place of |A|_1."""
    if norm is None:
        norm = reduce(a, "b h i j -> b h 1 j", "sum").amax(dim=-1, keepdim=True)
    reason = ""
    if a.dtype != torch.float32 or not 0 < a.shape[-1] <= LARGEST or not a.numel():
        reason = f"it takes float32 matrices of 1 to {LARGEST} rows, got {a.dtype} and {a.shape[-1]}"
    if choose(impl, "pseudo_inverse", a, reason) == "triton":
        return operator.forward(a, a.mT / norm, iterations)[0]
    return reference.pseudo_inverse(a, a.mT / norm, iterations)
