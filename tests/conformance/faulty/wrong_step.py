"""A decaying mean of the past, right in parallel; its step decays after adding the new token instead of before."""

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.attentions import AttentionMeta, DecodeState, HeadwiseAttention, Pattern

DECAY = 0.9


@dataclass
class Sums(DecodeState):
    total: Tensor
    weight: Tensor


class WrongStep(HeadwiseAttention):
    meta = AttentionMeta(title="Wrong step", paper="none", family="faulty", cost="n^2", patterns=(Pattern.CAUSAL_SELF,))

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        real = v.new_ones(v.shape[0], v.shape[2]) if key_mask is None else key_mask.to(v.dtype)
        age = real.cumsum(dim=1)[:, :, None] - real.cumsum(dim=1)[:, None]  # counted in real tokens
        seen = real[:, None] * torch.ones_like(age).tril()
        p = DECAY ** age.clamp(min=0) * seen
        p = p / p.sum(dim=-1, keepdim=True).clamp(min=1e-30)
        gate = torch.sigmoid((q * k).sum(dim=-1, keepdim=True))
        return p[:, None] @ v * gate

    def begin(self, k, v, *, key_mask=None):
        real = v.new_ones(v.shape[0], v.shape[2]) if key_mask is None else key_mask.to(v.dtype)
        age = real.sum(dim=1, keepdim=True) - real.cumsum(dim=1)
        p = DECAY**age * real
        return Sums(torch.einsum("bt,bhte->bhe", p, v), p.sum(dim=1))

    def advance(self, q, k, v, state):
        total = (state.total + v) * DECAY  # should be state.total * DECAY + v
        weight = state.weight * DECAY + 1
        gate = torch.sigmoid((q * k).sum(dim=-1, keepdim=True))
        return total / weight[:, None, None] * gate, Sums(total, weight)
