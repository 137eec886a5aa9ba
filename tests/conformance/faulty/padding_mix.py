"""Softmax attention with heads folded into the batch and the mask repeated in the other order.

Tokens are folded batch by batch, the mask head by head: with one row or one head nobody notices.
"""

import torch
from einops import rearrange

from longspan.attentions import AttentionMeta, HeadwiseAttention, Pattern


class PaddingMix(HeadwiseAttention):
    meta = AttentionMeta(
        title="Mixed masks",
        paper="none",
        family="faulty",
        cost="n^2",
        patterns=(Pattern.NONCAUSAL_SELF, Pattern.NONCAUSAL_CROSS),
    )

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        b, h = q.shape[:2]
        q, k, v = (rearrange(u, "b h n c -> (b h) n c") for u in (q, k, v))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if key_mask is None:
            hidden = torch.zeros(1, 1, 1, dtype=torch.bool, device=q.device)
        else:
            hidden = ~key_mask.repeat(h, 1)[:, None]  # should be repeat_interleave(h, dim=0)
        scores = scores.masked_fill(hidden, -torch.inf)
        p = torch.softmax(scores, dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).masked_fill(hidden, 0)
        return rearrange(p.to(v.dtype) @ v, "(b h) n e -> b h n e", b=b)
