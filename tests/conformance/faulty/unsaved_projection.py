"""Keys shortened by a random matrix that lies in a plain attribute: it is neither saved nor restored."""

import torch

from longspan.attentions import NONCAUSAL_PATTERNS, AttentionMeta, HeadwiseAttention


class UnsavedProjection(HeadwiseAttention):
    meta = AttentionMeta(
        title="Unsaved projection",
        paper="none",
        family="faulty",
        cost="n^2",
        patterns=NONCAUSAL_PATTERNS,
        stochastic=True,
    )

    def __init__(self, dim, heads, pattern, *, rank: int = 4, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.directions = torch.randn(self.head_dim, rank)  # should be a buffer

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        directions = self.directions.to(q)
        scores = (q @ directions) @ (k @ directions).mT / directions.shape[1]
        real = torch.ones_like(scores[:, :1, :1], dtype=torch.bool) if key_mask is None else key_mask[:, None, None]
        p = torch.softmax(
            scores.masked_fill(~real, -torch.inf), dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)
        )
        return p.masked_fill(~real, 0).to(v.dtype) @ v
