"""FAVOR+: attention by positive random features of the softmax kernel, computed where they are used and never stored.

    y_t = sum_s w_ts v_s / sum_s w_ts      w_ts = phi(q_t) . phi(k_s)
    phi(x)_r = exp(W_r . x' - |x'|^2 / 2)      x' = x / c^(1/4)

over the real keys s, in the causal form over s <= t; a query that sees nothing gets 0. Every feature is divided by a
maximum that cancels in y: of all keys for that feature, or in the causal form the running maximum of all features, so
that a row is untouched by later keys; and of all features for that query. No gradient goes through a maximum.
Exponentials and sums run in float32 or better; the result has the type of v. `reference` defines the answer; `triton`
takes float32 or bfloat16 and heads up to 128 wide, rounds phi and saved sums to the type of its inputs, reads them in
any order of their axes, and is deterministic.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose, lack_of_room, unsupported_inputs
from longspan.kernels.favor import operator, reference
from longspan.kernels.favor.reference import draw_projection, log_features, stabilized_features
from longspan.kernels.favor.shape import SHARED_BYTES, WIDEST
from longspan.kernels.precision import without_autocast

__all__ = ["draw_projection", "favor", "log_features", "stabilized_features"]


def favor(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    projection: Float[Tensor, "r c"],
    *,
    causal: bool = False,
    key_mask: Bool[Tensor, "b m"] | None = None,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h n e"]:
    """Attention of every query over the keys it sees, by the features that the rows of the projection make.

    >>> y = favor(q, k, v, projection, causal=True, key_mask=mask)
    """
    with without_autocast(q):
        if choose(impl, "favor", q, unsupported_reason(q, k, v)) == "triton":
            return operator.forward(q, k, v, projection, key_mask, causal)[0]
        return reference.favor(q, k, v, projection, key_mask, causal=causal)


def unsupported_reason(q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"]) -> str:
    """Why the Triton kernels cannot take these tensors, or nothing."""
    if reason := unsupported_inputs(q, k, v):
        return reason
    if max(q.shape[3], v.shape[3]) > WIDEST:
        return f"heads must be at most {WIDEST} wide, got {q.shape[3]} and {v.shape[3]}"
    return lack_of_room(q, SHARED_BYTES)
