"""Linear attention: a feature map in place of the softmax, so that keys and values are summed once.

    y_i = phi(q_i) S / (phi(q_i) z + eps)      S = sum_j phi(k_j) v_j^T      z = sum_j phi(k_j)

with phi(u) = elu(u) + 1 and sums over the real keys j, in causal self attention over j <= i. There is no scaling by the
width. While decoding, S and z are all that has to be kept. Paper: arXiv:2006.16236. Departs from the paper in: nothing.
"""

from dataclasses import dataclass
from typing import Any

import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, DecodeState, HeadwiseAttention, Pattern
from longspan.kernels.feature_attention import feature_attention, features, with_ones
from longspan.kernels.packing import Layout
from longspan.kernels.precision import without_autocast
from longspan.kernels.ragged_linear import kernel_fits, ragged_linear


@dataclass
class Sums(DecodeState):
    """S with z as its last column."""

    memory: Float[Tensor, "b h c e_plus_1"]


class LinearAttention(HeadwiseAttention):
    meta = AttentionMeta(
        title="Linear Transformer",
        paper="arXiv:2006.16236",
        family="kernel",
        cost="n",
        rowwise=True,
        patterns=ALL_PATTERNS,
        remark="The released Long Range Arena code of it accepts masks and ignores them; here they are honoured.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, eps: float = 1e-6, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        self.eps = eps

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        causal = self.pattern is Pattern.CAUSAL_SELF
        return feature_attention(q, k, v, feature="elu", causal=causal, key_mask=key_mask, eps=self.eps)

    def attend_packed(
        self, q: Float[Tensor, "t h c"], k: Float[Tensor, "t h c"], v: Float[Tensor, "t h e"], layout: Layout
    ) -> Float[Tensor, "t h e"]:
        if self.pattern is Pattern.CAUSAL_SELF or not kernel_fits(q, k, v):
            return super().attend_packed(q, k, v, layout)
        return ragged_linear(q, k, v, layout.cu_seqlens, layout.max_seqlen, feature="elu", eps=self.eps)

    def attend_first_packed(
        self, q: Float[Tensor, "b h c"], k: Float[Tensor, "t h c"], v: Float[Tensor, "t h e"], layout: Layout
    ) -> Float[Tensor, "b h e"]:
        if not kernel_fits(q, k, v):
            return super().attend_first_packed(q, k, v, layout)
        one_each = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
        rows = {
            "cu_seqlens": layout.cu_seqlens,
            "max_seqlen": layout.max_seqlen,
            "query_cu_seqlens": one_each,
            "max_query_seqlen": 1,
        }
        return ragged_linear(q, k, v, **rows, feature="elu", eps=self.eps)

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Sums:
        with without_autocast(k):
            return Sums(features(k, "elu", mask=key_mask).mT @ with_ones(v))

    def advance(
        self, q: Float[Tensor, "b h c"], k: Float[Tensor, "b h c"] | None, v: Float[Tensor, "b h e"] | None, state: Sums
    ) -> tuple[Float[Tensor, "b h e"], Sums]:
        with without_autocast(q):
            if k is not None and v is not None:
                state = Sums(state.memory + einsum(features(k, "elu"), with_ones(v), "b h c, b h e -> b h c e"))
            y = einsum(features(q, "elu"), state.memory, "b h c, b h c e -> b h e")
            return (y[..., :-1] / (y[..., -1:] + self.eps)).to(q.dtype), state
