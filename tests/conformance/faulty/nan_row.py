"""Softmax attention written by hand without a thought for the row that sees nothing: 0 / 0."""

import torch

from longspan.attentions import ALL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern


class NanRow(HeadwiseAttention):
    meta = AttentionMeta(title="NaN row", paper="none", family="faulty", cost="n^2", patterns=ALL_PATTERNS)

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if self.pattern is Pattern.CAUSAL_SELF:
            later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        if key_mask is not None:
            scores = scores.masked_fill(~key_mask[:, None, None], -torch.inf)
        return torch.softmax(scores, dim=-1) @ v
