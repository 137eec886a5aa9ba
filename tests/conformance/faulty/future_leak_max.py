"""Causal random features with one maximum over the whole sequence and an epsilon after the exponential.

The maximum would cancel between numerator and denominator, were it not for the epsilon: a large last key shrinks
all earlier features against it.
"""

import torch

from longspan.attentions import AttentionMeta, HeadwiseAttention, Pattern


class FutureLeakMax(HeadwiseAttention):
    meta = AttentionMeta(
        title="Leaking features",
        paper="none",
        family="faulty",
        cost="n",
        patterns=(Pattern.CAUSAL_SELF,),
        stochastic=True,
    )

    def __init__(self, dim, heads, pattern, *, features: int = 16, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.register_buffer("directions", torch.randn(features, self.head_dim))

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        phi_q, phi_k = self.logs(q), self.logs(k)
        if key_mask is not None:
            phi_k = phi_k.masked_fill(~key_mask[:, None, :, None], -torch.inf)
        largest = phi_k.amax(dim=(-2, -1), keepdim=True)
        phi_q = torch.exp(phi_q - phi_q.amax(dim=-1, keepdim=True))
        phi_k = torch.exp(phi_k - torch.where(largest.isfinite(), largest, 0)) + 1e-4
        if key_mask is not None:
            phi_k = phi_k * key_mask[:, None, :, None]
        total = torch.einsum("bhtr,bhte->bhtre", phi_k, v).cumsum(dim=2)
        weight = (phi_q * phi_k.cumsum(dim=2)).sum(dim=-1, keepdim=True)
        y = torch.einsum("bhtr,bhtre->bhte", phi_q, total)
        return torch.where(weight > 0, y / torch.where(weight > 0, weight, 1), 0)

    def logs(self, u):
        u = u.to(torch.promote_types(u.dtype, torch.float32)) * u.shape[-1] ** -0.25
        return u @ self.directions.to(u.dtype).mT - u.square().sum(dim=-1, keepdim=True) / 2
