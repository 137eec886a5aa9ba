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
    if impl == "reference":
        return reference.pseudo_inverse(a, norm, iterations)
    z = a.mT / norm
    if choose(impl, "pseudo_inverse", a, _unsupported_reason(a)) == "triton":
        return operator.forward(a, z, iterations)[0]
    batch, minus_a, z = a.shape[:2], -a.flatten(0, 1), z.flatten(0, 1)
    for _ in range(iterations):  # Z <- Z (13 I + N (15 I + N (7 I + N))) / 4 with N = -AZ, one fused product a bracket
        n = minus_a @ z
        seven = torch.baddbmm(n, n, n, beta=7)
        fifteen = torch.baddbmm(n, n, seven, beta=15)
        z = torch.baddbmm(z, z, fifteen, beta=13) / 4
    return z.unflatten(0, batch)


def _unsupported_reason(a: Float[Tensor, "b h r r"]) -> str:
    if a.dtype != torch.float32 or not 0 < a.shape[-1] <= LARGEST or not a.numel():
        return f"it takes float32 matrices of 1 to {LARGEST} rows, got {a.dtype} and {a.shape[-1]}"
    return ""
