"""Attention by features: the weight of a pair is a product of two features, so that keys and values are summed once.

    y_t = sum_s w_ts v_s / max(sum_s w_ts + eps, floor)      w_ts = phi(q_t) . phi(k_s)

over the real keys s, in the causal form over s <= t. phi is one of

    "none"     the tensors given are features already
    "elu"      elu(u) + 1
    "cosine"   [relu(u) cos(angle), relu(u) sin(angle)], an angle for each token

Sums run in float32 or better; the result has the type of v. `reference` defines the answer; `triton` takes float32 or
bfloat16 and widths up to 128 (given features may have any), rounds phi to the type of its inputs, needs no copy of them
whatever the order of their axes, and gives the same bits in every run.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose, lack_of_room
from longspan.kernels.feature_attention import operator, reference
from longspan.kernels.feature_attention.reference import features, with_ones
from longspan.kernels.feature_attention.shapes import WIDEST, feature_width
from longspan.kernels.precision import without_autocast

__all__ = ["Feature", "feature_attention", "features", "with_ones"]

WIDE, WIDE_BYTES = 64, 160 * 1024  # above this width they need more memory on chip than small GPUs have

Feature = Literal["none", "elu", "cosine"]


def feature_attention(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    *,
    feature: Feature = "none",
    causal: bool = False,
    key_mask: Bool[Tensor, "b m"] | None = None,
    angles: tuple[Float[Tensor, "b n"], Float[Tensor, "b m"]] | None = None,
    eps: float = 0.0,
    floor: float = 0.0,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h n e"]:
    """Attention of every query over the keys it sees; `angles` of queries and of keys.

    >>> y = feature_attention(q, k, v, feature="elu", causal=True, key_mask=mask, eps=1e-6)
    """
    impl = choose(impl, "feature_attention", q, _unsupported_reason(q, k, v, feature))
    beside = (key_mask, *(angles or (None, None)))
    with without_autocast(q):
        if impl == "reference":
            return reference.feature_attention(q, k, v, *beside, feature=feature, causal=causal, eps=eps, floor=floor)
        return operator.forward(q, k, v, *beside, feature, causal, eps, floor)[0]


def _unsupported_reason(
    q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], feature: Feature
) -> str:
    """What keeps the kernel from these tensors, if anything."""
    r, e = feature_width(q.shape[3], feature), v.shape[3]
    if not q.dtype == k.dtype == v.dtype or q.dtype not in (torch.float32, torch.bfloat16):
        return f"it takes q, k and v all in float32 or all in bfloat16, got {q.dtype}, {k.dtype} and {v.dtype}"
    if (r > WIDEST and feature != "none") or e > WIDEST:
        return f"features and values must be at most {WIDEST} wide, got {r} and {e}"
    if not (q.numel() and k.numel() and v.numel()):
        return "there are no tokens"
    return lack_of_room(q, WIDE_BYTES) if max(r, e) > WIDE else ""
