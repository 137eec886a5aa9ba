"""The Transformer's attention as Long Range Arena released it: a padded query averages over everything.

    y_i = sum_j p_ij v_j      p_i = softmax_j(q_i . k_j / sqrt(c) - 1e10 [i or j is padded])

A real query sees the real keys, as in `softmax`. Everything is hidden from a padded query: in single precision its
scores are then all equal, and it gets the mean of all values, including those of padded tokens. In the release black
pixels are padding, two thirds of a Pathfinder image, and those means enter the pooled vector. The scores of a padded
query no longer matter for the result, but they are still differentiated, at equal weights:

    dL/dq_i = 1/(n sqrt(c)) sum_j (g_i . (v_j - mean v)) k_j      g_i = dL/dy_i      and dL/dk_j likewise

Code: google-research/long-range-arena, models/transformer. Departs from it in: those gradients are computed without
dropout of the weights, which is their mean over dropout masks, so no matrix of weights is needed.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern
from longspan.kernels.masked import masked_attention


class LRASoftmax(HeadwiseAttention):
    meta = AttentionMeta(
        title="Transformer (LRA)",
        paper="arXiv:2011.04006",
        family="exact",
        cost="n^2",
        patterns=(Pattern.NONCAUSAL_SELF,),
        rowwise=True,
        dropout="weights",
        fidelity=True,
        remark="A padded query averages over all tokens, padding included; black pixels are padding.",
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
        if key_mask is None:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=self.active_dropout)
        y = masked_attention(q, k, v, key_mask[:, None, None, :], dropout=self.active_dropout)
        if query_mask is None:
            return y
        return torch.where(query_mask[:, None, :, None], y, self._mean(q, k, v))

    def _mean(
        self, q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"]
    ) -> Float[Tensor, "b h n e"]:
        """The mean of all values for every query, with the gradients of scores that have become equal."""
        if self.active_dropout:  # drops equal weights, independently for every query
            mean = F.scaled_dot_product_attention(torch.zeros_like(q), k, v, dropout_p=self.active_dropout)
        else:
            mean = v.mean(dim=2, keepdim=True)
        apart = (v - v.mean(dim=2, keepdim=True)).detach()
        unseen = q @ (k.mT @ apart) / (k.shape[2] * q.shape[-1] ** 0.5)
        return mean + (unseen - unseen.detach())
