"""Linear attention: a feature map in place of the softmax, so that keys and values are summed once.

    y_i = phi(q_i) S / (phi(q_i) z + eps)      S = sum_j phi(k_j) v_j^T      z = sum_j phi(k_j)

with phi(u) = elu(u) + 1 and sums over the real keys j, in causal self attention over j <= i. Scores are not scaled by
the width. Decoding only needs to keep S and z. Paper: arXiv:2006.16236. Departs from the paper in: nothing.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import DecodeState
from longspan.kernels.context_parallel import sum_before
from longspan.kernels.linear_attention import final_state, linear_attention, linear_attention_step
from longspan.kernels.packing import Layout


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
        remark="The released Long Range Arena code of it ignores masks (lra_linear); here they are honoured.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, eps: float = 1e-6, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        self.eps = eps
        self._how: dict[str, Any] = {"feature": "elu", "causal": self.pattern is Pattern.CAUSAL_SELF, "eps": eps}

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        return linear_attention(q, k, v, key_mask=key_mask, **self._how)

    @property
    def shares_context(self) -> bool:
        return self.pattern is Pattern.CAUSAL_SELF

    def attend_shared(
        self, q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n e"]
    ) -> Float[Tensor, "b h n e"]:
        """S and z of earlier tokens come from the preceding processes: nothing else is communicated."""
        return linear_attention(q, k, v, initial_state=sum_before(final_state(k, v, feature="elu")), **self._how)

    def attend_packed(
        self, q: Float[Tensor, "t h c"], k: Float[Tensor, "t h c"], v: Float[Tensor, "t h e"], layout: Layout
    ) -> Float[Tensor, "t h e"]:
        if not q.is_cuda:  # the kernel for ragged batches needs CUDA
            return super().attend_packed(q, k, v, layout)
        return linear_attention(q, k, v, cu_seqlens=layout.cu_seqlens, max_seqlen=layout.max_seqlen, **self._how)

    def attend_first_packed(
        self, q: Float[Tensor, "b h c"], k: Float[Tensor, "t h c"], v: Float[Tensor, "t h e"], layout: Layout
    ) -> Float[Tensor, "b h e"]:
        rows = {"cu_seqlens": layout.cu_seqlens, "max_seqlen": layout.max_seqlen}
        rows |= {"query_cu_seqlens": torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)}
        return linear_attention(q, k, v, **rows, max_query_seqlen=1, **self._how)

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Sums:
        return Sums(final_state(k, v, feature="elu", key_mask=key_mask))

    def advance(
        self, q: Float[Tensor, "b h c"], k: Float[Tensor, "b h c"] | None, v: Float[Tensor, "b h e"] | None, state: Sums
    ) -> tuple[Float[Tensor, "b h e"], Sums]:
        y, memory = linear_attention_step(q, k, v, state.memory, feature="elu", eps=self.eps)
        return y, Sums(memory)
