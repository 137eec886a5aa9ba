"""Causal attention to the most promising keys, where promise is judged against the mean of the whole sequence.

The scores are masked as they should be; which keys are kept depends on later tokens, and no gradient shows it.
"""

import torch

from longspan.attentions import AttentionMeta, HeadwiseAttention, Pattern


class SelectionLeak(HeadwiseAttention):
    meta = AttentionMeta(
        title="Chosen keys", paper="none", family="faulty", cost="n^2", patterns=(Pattern.CAUSAL_SELF,)
    )

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        n = k.shape[2]
        real = k.new_ones(k.shape[0], n, dtype=torch.bool) if key_mask is None else key_mask
        lengths = k.detach().square().sum(dim=-1)
        mean = (lengths * real[:, None]).sum(dim=-1, keepdim=True) / real.sum(dim=-1)[:, None, None].clamp(min=1)
        own = torch.eye(n, dtype=torch.bool, device=k.device)
        seen = torch.ones(n, n, dtype=torch.bool, device=k.device).tril() & real[:, None, None, :]
        seen = seen & ((lengths > 0.8 * mean)[:, :, None, :] | own)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
        p = torch.softmax(scores, dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).masked_fill(~seen, 0)
        return p.to(v.dtype) @ v
