"""Flowformer as its authors released it for Long Range Arena: keys compete across heads, not within a head.

    I_i = phi(q_i) . sum_j phi(k_j)              O_j = phi(k_j) . sum_i phi(q_i)
    I'_i = phi(q_i) . sum_j phi(k_j) / O_j       O'_j = phi(k_j) . sum_i phi(q_i) / I_i
    y_i = sigmoid(I'_i n / m) / I_i phi(q_i) . sum_j phi(k_j) m softmax_heads(O'_j) v_j^T

with phi = relu + 1e-6, `eps` added to both factors of every flow, and sums over all tokens, padding included. The idea
(`flowformer`) has sigmoid features, a softmax over keys, a clamp before it, and honours padding. Code:
thuml/Flowformer, Flowformer_LRA/lra_benchmarks/models/flowformer. Departs from it in: nothing.
"""

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import NONCAUSAL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.linear_attention import linear_attention
from longspan.kernels.precision import at_least_single, without_autocast


class LRAFlowformer(HeadwiseAttention):
    meta = AttentionMeta(
        title="Flowformer (LRA)",
        paper="arXiv:2202.06258",
        family="kernel",
        cost="n",
        patterns=NONCAUSAL_PATTERNS,
        fidelity=True,
        remark="Its softmax goes over heads instead of keys, and padding counts as tokens.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, eps: float = 1e-6, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if eps < 0:
            raise UsageError(f"lra_flowformer adds eps to features, got eps={eps}; choose 0 or a positive number.")
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
        with without_autocast(q):
            n, m = q.shape[2], k.shape[2]
            phi_q, phi_k = (at_least_single(x).relu() + 1e-6 for x in (q, k))
            incoming, outgoing = self._flow(phi_q, phi_k), self._flow(phi_k, phi_q)
            allotted = self._flow(phi_q, phi_k / outgoing) * (n / m)
            share = m * self._flow(phi_k, phi_q / incoming).softmax(dim=1)
            y = linear_attention(phi_q, phi_k, share * at_least_single(v), normalize=False)
            return (allotted.sigmoid() / incoming * y).to(v.dtype)

    def _flow(self, one: Float[Tensor, "b h n c"], other: Float[Tensor, "b h m c"]) -> Float[Tensor, "b h n 1"]:
        total = other.sum(dim=2, keepdim=True)
        return ((one + self.eps) * (total + self.eps)).sum(dim=-1, keepdim=True)
