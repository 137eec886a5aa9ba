"""Many queries over a few keys: attention whose weights may have a second factor, and keys that may have a start.

    y_i = sum_r w_ir v_r / sum_r w_ir      w_ir = exp(q_i . k_r + shift_r) a_ir

    a_ir = 1, or with `factor` = (center, base, beta)
    a_ir = max(base_r + beta t_ir, 1e-8)      t_i = softmax_r(q_i . center_r)

A key with a shift of -inf is not there, in t neither; without any, y is 0. Hidden queries count as 0, whatever they
hold. Scale the keys before. All is computed in float32 or better; the result has the type of q. `reference` defines the
answer; `triton` takes queries in float32 or bfloat16 and up to 64 keys of up to 64 channels, in bfloat16 128 of one of
these, reads every query once, keeps nothing for the way back, and gives the same bits in every run.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.few_keys import operator, reference
from longspan.kernels.few_queries.shapes import unsupported_reason
from longspan.kernels.precision import at_least_single, without_autocast

Factor = tuple[Float[Tensor, "b h r c"], Float[Tensor, "b h r"], float]  # center, base, beta


def few_keys(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h r c"],
    v: Float[Tensor, "b h r e"],
    *,
    shift: Float[Tensor, "b h r"] | None = None,
    factor: Factor | None = None,
    query_mask: Bool[Tensor, "b n"] | None = None,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h n e"]:
    """The mean of the values that each query sees.

    >>> y = few_keys(q, landmarks / q.shape[-1] ** 0.5, v)
    """
    center, base, beta = factor or (None, None, 0.0)
    k, v = at_least_single(k), at_least_single(v)
    shift, center, base = (None if x is None else at_least_single(x) for x in (shift, center, base))
    impl = choose(impl, "few_keys", q, _unsupported_reason(q, k, v))
    with without_autocast(q):
        compute = operator.forward if impl == "triton" else reference.few_keys
        return compute(q, k, v, shift, center, base, query_mask, beta)


def _unsupported_reason(q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h r c"], v: Float[Tensor, "b h r e"]) -> str:
    """What keeps the kernel from these tensors, if anything."""
    if q.dtype not in (torch.float32, torch.bfloat16) or torch.float64 in (k.dtype, v.dtype):
        return f"it takes queries in float32 or bfloat16 and nothing in float64, got {q.dtype}, {k.dtype} and {v.dtype}"
    return unsupported_reason(q, k.shape[2], v.shape[3])
