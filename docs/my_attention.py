"""A mechanism of one's own, whole: every token gates the weighted mean of what it may see.

y_i = sigmoid(q_i) * sum_j sigmoid(k_j) v_j / sum_j sigmoid(k_j)      over real tokens j, and j <= i when causal
"""

import torch

from longspan.attentions import SELF_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern


class Mine(HeadwiseAttention):
    meta = AttentionMeta(title="Gated mean", paper="none", family="gated", cost="n", patterns=SELF_PATTERNS)

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        weight = torch.sigmoid(k.to(torch.promote_types(k.dtype, torch.float32)))  # sums want float32 at least
        if key_mask is not None:  # True is a real token
            weight, v = weight * key_mask[:, None, :, None], v.masked_fill(~key_mask[:, None, :, None], 0)
        if self.pattern is Pattern.CAUSAL_SELF:
            top, bottom = (weight * v).cumsum(dim=2), weight.cumsum(dim=2)
        else:
            top, bottom = (weight * v).sum(dim=2, keepdim=True), weight.sum(dim=2, keepdim=True)
        return torch.sigmoid(q) * top / torch.where(bottom > 0, bottom, 1)  # nothing to see: 0
