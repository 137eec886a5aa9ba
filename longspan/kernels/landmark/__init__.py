"""Landmark attention: many tokens are pooled into a few, and many attend to a few.

    landmark_pool      y_r = sum_j exp(s_rj - lse_r) v_j      lse_r = log sum_j exp(s_rj)
                       s_rj = q_r . k_j - key_norm |k_j|^2

    landmark_attend    y_i = sum_r w_ir v_r / sum_r w_ir      w_ir = exp(q_i . k_r + shift_r) a_ir
                       a_ir = 1, or with `factor` = (center, base, beta)
                       a_ir = max(base_r + beta t_ir, 1e-8)      t_i = softmax_r(q_i . center_r)

Scale the few beforehand: the queries of `landmark_pool`, the keys of `landmark_attend`. Both compute in float32 or
better. `reference` defines the answers. The Triton kernels take the many in float32 or bfloat16, and as the few up to
64 landmarks of up to 64 channels (in bfloat16, 128 of one of these). They read every token once, save only the results
of `landmark_pool` for the backward pass, and are deterministic. `pieces` has the same products in plain PyTorch, for
mechanisms that weight tokens differently.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.landmark import operator, reference
from longspan.kernels.landmark.operator import unsupported_reason
from longspan.kernels.precision import at_least_single, without_autocast

Factor = tuple[Float[Tensor, "b h r c"], Float[Tensor, "b h r"], float]  # center, base, beta


def landmark_pool(
    q: Float[Tensor, "b h r c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    *,
    key_norm: float = 0.0,
    key_mask: Bool[Tensor, "b m"] | None = None,
    step: int | None = None,
    impl: Implementation = "auto",
) -> tuple[Float[Tensor, "b h r e"], Float[Tensor, "b h r"]]:
    """Attention of a few queries over many keys, y and lse, in float32 or better; both are 0 if no key is visible.

    `key_norm` = 0 is softmax attention; otherwise s is the logarithm of a random feature. With a `step` query r sees
    only the keys up to r * step, which is causal for queries that are tokens 0, step, 2 step...

    >>> y, lse = landmark_pool(landmarks / q.shape[-1] ** 0.5, k, v, key_mask=mask)
    """
    impl = choose(impl, "landmark_pool", k, _unsupported_pool(q, k, v))
    with without_autocast(q):
        compute = operator.pool if impl == "triton" else reference.landmark_pool
        y, lse = compute(at_least_single(q), k, v, key_mask, key_norm, step or 0)
    return y, lse


def landmark_attend(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h r c"],
    v: Float[Tensor, "b h r e"],
    *,
    shift: Float[Tensor, "b h r"] | None = None,
    factor: Factor | None = None,
    key_mask: Bool[Tensor, "b r"] | None = None,
    query_mask: Bool[Tensor, "b n"] | None = None,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h n e"]:
    """Attention of many queries over a few keys, in the type of q.

    A key that is hidden, or whose shift is -inf, has no effect, not even in t, but must be finite; without any visible
    key y is 0. Hidden queries are treated as 0, whatever they hold.

    >>> y = landmark_attend(q, landmarks / q.shape[-1] ** 0.5, v)
    """
    center, base, beta = factor or (None, None, 0.0)
    if key_mask is not None:
        shift = torch.zeros(k.shape[:3], device=k.device) if shift is None else shift
        shift = shift.masked_fill(~key_mask[:, None], -torch.inf)
    k, v = at_least_single(k), at_least_single(v)
    shift, center, base = (None if x is None else at_least_single(x) for x in (shift, center, base))
    impl = choose(impl, "landmark_attend", q, _unsupported_attend(q, k, v))
    with without_autocast(q):
        compute = operator.attend if impl == "triton" else reference.landmark_attend
        return compute(q, k, v, shift, center, base, query_mask, beta)


def is_faster(q: Float[Tensor, "b h r c"], k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"]) -> bool:
    """Whether `landmark_pool` has a kernel for these tensors."""
    return choose("auto", "landmark_pool", k, _unsupported_pool(q, k, v)) == "triton"


def _unsupported_pool(q: Float[Tensor, "b h r c"], k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"]) -> str:
    if k.dtype != v.dtype or k.dtype not in (torch.float32, torch.bfloat16) or q.dtype == torch.float64:
        return f"it takes k and v both in float32 or both in bfloat16, got {q.dtype}, {k.dtype} and {v.dtype}"
    return unsupported_reason(k, q.shape[2], v.shape[3])


def _unsupported_attend(q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h r c"], v: Float[Tensor, "b h r e"]) -> str:
    if q.dtype not in (torch.float32, torch.bfloat16) or torch.float64 in (k.dtype, v.dtype):
        return f"it takes queries in float32 or bfloat16 and nothing in float64, got {q.dtype}, {k.dtype} and {v.dtype}"
    return unsupported_reason(q, k.shape[2], v.shape[3])
