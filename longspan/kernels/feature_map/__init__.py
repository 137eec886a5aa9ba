"""Features wider than the queries and keys they are made from, computed and differentiated in one pass each.

    dpfp    phi(x) = [u * roll(u, 1), ..., u * roll(u, nu)]      u = relu([x, -x])
    waves   phi(x) = scale [sin(M x'), cos(M x')]                x' = x / (|x| + 1e-3)

with a cyclic roll over the 2 c entries of u, and a matrix M [r, c] for each head. In float32 or better, then rounded
where x is in bfloat16. `reference` defines the answer; `triton` takes float32 or bfloat16, reads x once and writes phi
once, and is deterministic.
"""

from jaxtyping import Float
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose, unsupported_inputs
from longspan.kernels.feature_map import operator, reference
from longspan.kernels.precision import at_least_single, bfloat16_or_single, without_autocast

__all__ = ["dpfp", "waves"]

WIDEST = 128  # channels of a head and rows of M, which has to stay on chip


def dpfp(x: Float[Tensor, "b h n c"], nu: int, *, impl: Implementation = "auto") -> Float[Tensor, "b h n r"]:
    """2 c nu features of each token.

    >>> phi_q, phi_k = dpfp(q, 2), dpfp(k, 2)
    """
    x = bfloat16_or_single(x)
    if choose(impl, "feature_map", x, unsupported_inputs(x)) == "triton":
        return operator.dpfp(x, nu)
    return reference.dpfp(at_least_single(x), nu).to(x.dtype)


def waves(
    x: Float[Tensor, "b h n c"], matrix: Float[Tensor, "h r c"], scale: float, *, impl: Implementation = "auto"
) -> Float[Tensor, "b h n two_r"]:
    """A sine and a cosine for each row of the matrix of a head.

    >>> phi_q = waves(q, sigma * projection / tau, features**-0.5)
    """
    x = bfloat16_or_single(x)
    with without_autocast(x):
        if choose(impl, "feature_map", x, _unsupported_reason(x, matrix)) == "triton":
            return operator.waves(x, matrix, scale)
        single = at_least_single(x)
        return reference.waves(single, matrix.to(single.dtype), scale).to(x.dtype)


def _unsupported_reason(x: Float[Tensor, "b h n c"], matrix: Float[Tensor, "h r c"]) -> str:
    if max(matrix.shape[1:]) > WIDEST:
        return f"heads and features must be at most {WIDEST} wide, got {matrix.shape[2]} and {matrix.shape[1]}"
    return unsupported_inputs(x)
