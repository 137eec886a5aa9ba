"""Bounded memory whose causal form forgot the sum: each memory holds the current token, weighted by its share so far.

The past still enters through the normaliser, so the output moves when the past does; but only as a multiple of the
current value.
"""

import torch
from torch import nn

from longspan.attentions import AttentionMeta, HeadwiseAttention, Pattern


class ForgetfulABC(HeadwiseAttention):
    meta = AttentionMeta(
        title="Forgetful ABC", paper="none", family="faulty", cost="n", patterns=(Pattern.CAUSAL_SELF,)
    )

    def __init__(self, dim, heads, pattern, *, slots: int = 4, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.control = nn.Linear(self.head_dim, slots, bias=False)

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        logits = self.control(k).to(torch.promote_types(k.dtype, torch.float32))
        if key_mask is not None:
            logits = logits.masked_fill(~key_mask[:, None, :, None], -1e30)
        share = torch.exp(logits - torch.logcumsumexp(logits, dim=2))
        if key_mask is not None:
            share = share * key_mask[:, None, :, None]
        memory_k = torch.einsum("bhtr,bhtc->bhtrc", share, k.to(share.dtype))  # should be summed over the past
        memory_v = torch.einsum("bhtr,bhte->bhtre", share, v.to(share.dtype))
        p = torch.einsum("bhtc,bhtrc->bhtr", q.to(share.dtype), memory_k) / q.shape[-1] ** 0.5
        return torch.einsum("bhtr,bhtre->bhte", p.softmax(dim=-1), memory_v)
