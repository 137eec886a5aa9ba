"""The Linear Transformer as Long Range Arena released it: masks are accepted and ignored.

    y_i = phi(q_i) S / (phi(q_i) z + 1e-6)      S = sum_j phi(k_j) v_j^T      z = sum_j phi(k_j)

with phi(u) = elu(u) + 1 and sums over all keys j, padding included. The idea (`linear`) sums over real keys. There is
no attention dropout. Code: google-research/long-range-arena, models/linear_transformer. Departs from it in: nothing.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern
from longspan.kernels.linear_attention import linear_attention


class LRALinear(HeadwiseAttention):
    meta = AttentionMeta(
        title="Linear Trans. (LRA)",
        paper="arXiv:2011.04006",
        family="kernel",
        cost="n",
        patterns=(Pattern.NONCAUSAL_SELF,),
        rowwise=True,
        fidelity=True,
        remark="Sums over all keys, padding and black pixels included.",
    )

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        return linear_attention(q, k, v, feature="elu", causal=False, eps=1e-6)
