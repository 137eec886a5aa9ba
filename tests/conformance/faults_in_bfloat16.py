"""Mechanisms that are correct in float32 and lose tokens in bfloat16, one of them through its choice of keys."""

import torch

from longspan.attentions import Pattern
from tests.conformance.right import Plain, declare
from tests.conformance.unusual import TopK


class SumsInBfloat16(Plain):
    """A gated mean of the past whose running sum is kept in the dtype of the values."""

    meta = declare(exact=False, cost="n", patterns=(Pattern.CAUSAL_SELF,))

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        real = torch.ones_like(v[:, :1, :, :1]) if key_mask is None else key_mask[:, None, :, None].to(v.dtype)
        values, total, count, rows = v * real, 0, 0, []
        for v_c, real_c in zip(values.split(2, dim=2), real.split(2, dim=2), strict=True):
            within, number = v_c.cumsum(dim=2), real_c.cumsum(dim=2)
            rows.append((within + total).to(v.dtype) / (number + count).to(v.dtype).clamp(min=1))
            total, count = (within[:, :, -1:] + total).to(v.dtype), (number[:, :, -1:] + count).to(v.dtype)
        return torch.cat(rows, dim=2).to(v.dtype) * torch.sigmoid((q * k).sum(dim=-1, keepdim=True)).to(v.dtype)


class CountsInBfloat16(Plain):
    """A bias by the distance, counted in the dtype of the queries, which cannot tell 256 from 257."""

    meta = declare(exact=False, patterns=(Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF))

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        real = torch.ones_like(v[:, 0, :, 0]) if key_mask is None else key_mask
        place = real.cumsum(dim=1).to(q.dtype)[:, None]
        p = self.probabilities(q, k, key_mask) * torch.exp(-(place[..., :, None] - place[..., None, :]).abs())
        return (p / p.sum(dim=-1, keepdim=True).clamp(min=1e-30)).to(v.dtype) @ v


class CoarseChoice(TopK):
    """The best keys, chosen with the signs of the keys once these are rounded."""

    def scores(self, q, k, real):
        return super().scores(q, k.sign() if k.dtype == torch.bfloat16 else k, real)
