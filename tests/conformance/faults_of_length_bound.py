"""Mechanisms that declare a bound on the length, where there is none or where it does not explain the fault."""

import torch
from torch import nn

from longspan.attentions import Pattern
from tests.conformance.right import Plain, declare

NS, CS = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF


class BoundInName(Plain):
    """Nothing in it depends on a length."""

    meta = declare(length_bound=True)


class BoundByABuffer(Plain):
    """Keeps the greatest length, and never reads it."""

    meta = declare(length_bound=True)

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.register_buffer("longest", torch.tensor(self.max_length or 0), persistent=False)


class BiasOfPlaces(Plain):
    """A learned gate for each place: bound to a length, and right."""

    meta = declare(exact=False, length_bound=True, patterns=(NS, CS))

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.gate = nn.Parameter(torch.randn(self._longest("max_length")))

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        self._check_room(k.shape[2], self.max_length, "tokens")
        return super().attend(q, k, v * self.place(k, key_mask), key_mask=key_mask)

    def place(self, k, key_mask):
        """The gate of each token, by its place among real ones."""
        real = k.new_ones(k.shape[0], k.shape[2]).long() if key_mask is None else key_mask.long()
        return torch.sigmoid(self.gate)[(real.cumsum(dim=1) - 1).clamp(min=0)][:, None, :, None]


class BlocksFromTheEnd(BiasOfPlaces):
    """Sees blocks of four counted from the end of the input, whatever the length it was built for."""

    meta = declare(exact=False, length_bound=True, patterns=(CS,))

    def probabilities(self, q, k, key_mask):
        block = (torch.arange(k.shape[2], device=k.device) - k.shape[2]) // 4
        p = super().probabilities(q, k, key_mask) * (block[:, None] == block[None])
        return p / p.sum(dim=-1, keepdim=True).clamp(min=1e-30)


class PaddedMean(BiasOfPlaces):
    """Divides by the padded width of the input, which is not the length it was built for."""

    meta = declare(exact=False, length_bound=True, patterns=(NS,), cost="n")

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        v = v * self.place(k, key_mask)
        v = v if key_mask is None else v * key_mask[:, None, :, None]
        return v.mean(dim=2, keepdim=True) * torch.sigmoid(q)


class FatAnyway(BiasOfPlaces):
    """Twice the parameters, none of which the length asks for."""

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.more, self.again = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x, context=None, *, mask=None, context_mask=None):
        return super().forward(x + 0 * self.again(self.more(x)), context, mask=mask, context_mask=context_mask)
