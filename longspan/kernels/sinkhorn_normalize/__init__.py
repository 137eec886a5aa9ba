"""Sinkhorn normalisation: the rows and columns of a positive matrix divided by their sums in turn, in the log domain.

    S = exp(x - r - c)      r_u = log sum_v exp(x_uv - c_v)      c_v = log sum_u exp(x_uv - r_u)      in turn

S tends to a doubly stochastic matrix. Entries that are not allowed take no part in any sum and are 0 in S, and so is a
row without any that are allowed. `reference` defines the answer and keeps a matrix for every step; `triton` keeps only
r and c.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.sinkhorn_normalize import operator, reference


def sinkhorn_normalize(
    x: Float[Tensor, "b h u v"], allowed: Bool[Tensor, "#b 1 u v"], iterations: int, *, impl: Implementation = "auto"
) -> Float[Tensor, "b h u v"]:
    """S after `iterations` iterations over rows and columns.

    >>> sinkhorn_normalize(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2, dtype=torch.bool), 1)[0, 0, 0]
    tensor([0.5000, 0.5000])
    """
    if choose(impl, "sinkhorn_normalize", x, _unsupported_reason(x)) == "reference":
        return reference.sinkhorn_normalize(x, allowed, iterations)
    return operator.forward(x, allowed, iterations)[0]


def _unsupported_reason(x: Float[Tensor, "b h u v"]) -> str:
    """Why the kernel cannot take this matrix, or ""."""
    if x.dtype != torch.float32:
        return f"it takes float32, got {x.dtype}"
    return "" if x.numel() else "the matrix is empty"
