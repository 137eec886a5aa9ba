"""Performer as CAB released it: sums clamped at 0.1, a new projection at every training step, masks of other rows.

    y_i = phi(q_i) S / max(phi(q_i) z, 0.1)      S = sum_j phi(k_j) v_j^T      z = sum_j phi(k_j)
    phi(x) = (exp(W x' - |x'|^2 / 2 - max) + 0.0001) / sqrt(r)      x' = x / c^(1/4)

with max over the features W x' of each query, and over those of all keys of a head. The idea (`performer`) is features
whose products are the softmax kernel on average, and divides by whatever they add up to. Here the bound of 0.1 is often
reached, and then the output is too small: 0.1 has no meaning on the scale of features from which a maximum was
subtracted. In training W is Gaussian, redrawn for every head at every call; in evaluation it is one matrix with rows
orthogonal in blocks, which the network never saw in training. `features` is r, 64 or 16 in CAB's tasks.

A padded key has no features, but it still takes part in the maximum. The mask applied to head h of row b is that of row
(b heads + h) mod batch: masks are repeated for each head, while queries and keys have the heads of a row side by side.
Masks are correct only with one row or one head.

Code: Shark-NLP/CAB, efficient_attention/modules/performer.py. Departs from it in: the matrix for evaluation is saved
with the weights (there each restart evaluates with another one), and causal self attention is refused (there it is
accepted but not causal).
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import DecodeState
from longspan.core.errors import UsageError
from longspan.kernels.favor import draw_projection, stabilized_features
from longspan.kernels.linear_attention import with_ones
from longspan.kernels.masked import tile_heads_first
from longspan.kernels.precision import without_autocast

STABILISER, SMALLEST_SUM = 1e-4, 0.1


@dataclass
class Features(DecodeState):
    """S with z as its last column."""

    memory: Float[Tensor, "b h r e_plus_1"]


class CABPerformer(HeadwiseAttention):
    meta = AttentionMeta(
        title="Performer (CAB)",
        paper="arXiv:2210.07661",
        family="kernel",
        cost="n",
        patterns=(Pattern.NONCAUSAL_SELF, Pattern.NONCAUSAL_CROSS, Pattern.CAUSAL_CROSS),
        stochastic=True,
        rowwise=True,
        fidelity=True,
        remark="Divides by at least 0.1, trains and evaluates with different projections, and mixes the masks of rows.",
    )

    projection: Float[Tensor, "h r c"]

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, features: int = 64, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if features < 1:
            raise UsageError(f"cab_performer needs at least 1 feature, got features={features}.")
        self.register_buffer("projection", draw_projection(features, self.head_dim, heads=(heads,), uniform=False))

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        with without_autocast(q):
            w = torch.randn_like(self.projection) if self.training else self.projection
            return _read(q, _summary(k, v, w, key_mask), w).to(v.dtype)

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Features | None:
        if self.training:  # the next query would use another projection
            return None
        with without_autocast(k):
            return Features(_summary(k, v, self.projection, key_mask))

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e"] | None,
        state: Features,
    ) -> tuple[Float[Tensor, "b h e"], Features]:
        with without_autocast(q):
            return _read(q[:, :, None], state.memory, self.projection)[:, :, 0].to(q.dtype), state


def _summary(
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    w: Float[Tensor, "h r c"],
    key_mask: Bool[Tensor, "b m"] | None,
) -> Float[Tensor, "b h r e_plus_1"]:
    phi = stabilized_features(k, w, STABILISER, over=(-1, -2))
    if key_mask is not None:
        phi = phi.masked_fill(~tile_heads_first(key_mask, k.shape[1])[..., None], 0)
    return phi.mT @ with_ones(v)


def _read(
    q: Float[Tensor, "b h n c"], memory: Float[Tensor, "b h r e_plus_1"], w: Float[Tensor, "h r c"]
) -> Float[Tensor, "b h n e"]:
    y = stabilized_features(q, w, STABILISER, over=(-1,)) @ memory
    return y[..., :-1] / y[..., -1:].clamp(min=SMALLEST_SUM)
