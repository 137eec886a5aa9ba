"""A few queries over many keys: attention, and the logarithm of the sum that each query divides by.

    y_r = sum_j exp(s_rj - level_r) v_j      level_r = log sum_j exp(s_rj)      s_rj = q_r . k_j - half |k_j|^2

over the real keys j; without any, y and level are 0. `half` = 0 is softmax attention; otherwise s is the logarithm of a
random feature. Scale the queries before. All is computed in float32 or better, and so are the results. `reference`
defines the answer; `triton` takes keys and values in float32 or bfloat16 and up to 64 queries of up to 64 channels, in
bfloat16 128 of one of these, reads every key and value once, keeps nothing for the way back but the results, and gives
the same bits in every run.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.few_queries import operator, reference
from longspan.kernels.few_queries.shapes import unsupported_reason
from longspan.kernels.precision import at_least_single, without_autocast


def few_queries(
    q: Float[Tensor, "b h r c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    *,
    half: float = 0.0,
    key_mask: Bool[Tensor, "b m"] | None = None,
    impl: Implementation = "auto",
) -> tuple[Float[Tensor, "b h r e"], Float[Tensor, "b h r"]]:
    """y and level.

    >>> y, _ = few_queries(landmarks / q.shape[-1] ** 0.5, k, v, key_mask=mask)
    """
    impl = choose(impl, "few_queries", k, _unsupported_reason(q, k, v))
    with without_autocast(q):
        compute = operator.forward if impl == "triton" else reference.few_queries
        y, level = compute(at_least_single(q), k, v, key_mask, half)
    return y, level


def is_faster(q: Float[Tensor, "b h r c"], k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"]) -> bool:
    """Whether there is a kernel for these tensors."""
    return choose("auto", "few_queries", k, _unsupported_reason(q, k, v)) == "triton"


def _unsupported_reason(q: Float[Tensor, "b h r c"], k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"]) -> str:
    """What keeps the kernel from these tensors, if anything."""
    if k.dtype != v.dtype or k.dtype not in (torch.float32, torch.bfloat16) or q.dtype == torch.float64:
        return f"it takes k and v both in float32 or both in bfloat16, got {q.dtype}, {k.dtype} and {v.dtype}"
    return unsupported_reason(k, q.shape[2], v.shape[3])
