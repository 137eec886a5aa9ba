"""Exact attention that declares to cost n, openly (a matrix of weights) or hidden in a fused kernel."""

import torch
import torch.nn.functional as F

from longspan.attentions import AttentionMeta, HeadwiseAttention, Pattern

CLAIM = AttentionMeta(title="Quadratic", paper="none", family="faulty", cost="n", patterns=(Pattern.NONCAUSAL_SELF,))


class Quadratic(HeadwiseAttention):
    meta = CLAIM

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        real = torch.ones_like(scores[:, :1, :1], dtype=torch.bool) if key_mask is None else key_mask[:, None, None]
        p = torch.softmax(
            scores.masked_fill(~real, -torch.inf), dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)
        )
        return p.masked_fill(~real, 0).to(v.dtype) @ v


class HiddenQuadratic(HeadwiseAttention):
    meta = CLAIM

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        if key_mask is None:
            return F.scaled_dot_product_attention(q, k, v)
        real = key_mask[:, None, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=real)  # linear memory, quadratic work
        return y.masked_fill(~real.any(dim=-1, keepdim=True), 0)
