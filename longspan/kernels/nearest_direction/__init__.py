"""The nearest of some directions and their opposites, the cross-polytope hash: argmax [u, -u], the first of equals.

    bucket = f_2 b_1 + b_2      b_i = argmax [u_i, -u_i]      u = (u_1, u_2), u_i of f_i / 2 directions

for one hash or two beside each other, `factors` = (f_1,) or (f_1, f_2). An offset of each hash is added to u on the
way. `reference` defines the answer; `triton` gives the very same numbers with u read once.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.nearest_direction import operator, reference

MOST = 4_096  # directions of a row that a program of the Triton kernel can hold


@torch.no_grad()
def nearest_direction(
    u: Float[Tensor, "*n m half"],
    factors: tuple[int, ...],
    offset: Float[Tensor, "m half"] | None = None,
    *,
    impl: Implementation = "auto",
) -> Int[Tensor, "*n m"]:
    """The buckets of m hashes of each token.

    >>> nearest_direction(torch.tensor([[0.5, -2.0], [0.5, 0.1]]), (4,))
    tensor([3, 0])
    """
    if choose(impl, "nearest_direction", u, _unsupported_reason(u, factors)) == "triton":
        return operator.nearest_direction(u, list(factors), offset)
    return reference.nearest_direction(u, factors, offset)


def _unsupported_reason(u: Float[Tensor, "*n m half"], factors: tuple[int, ...]) -> str:
    """What keeps the kernel from these tensors, if anything."""
    if u.dtype != torch.float32:
        return f"it takes float32, got {u.dtype}"
    if u.shape[-1] > MOST or len(factors) > 2:
        return f"it compares up to {MOST} directions of at most two hashes, got {u.shape[-1]} of {len(factors)}"
    return "" if u.numel() else "there are no tokens"
