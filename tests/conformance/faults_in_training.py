"""Mechanisms that are correct in evaluation and wrong in training.

Those that declare themselves stochastic add noise in training, so that only the named promise can find them.
"""

import torch
import torch.nn.functional as F
from torch import nn

from longspan.attentions import Pattern
from tests.conformance.right import Plain, declare

NOISY = declare(exact=False, stochastic=True)


class NoisyInTraining(Plain):
    """Right: it is random while it trains, and says so."""

    meta = NOISY

    def attend(self, q, k, v, **masks):
        return super().attend(self.noisy(q), k, v, **masks)

    def noisy(self, q):
        return q + 0.1 * torch.randn_like(q) if self.training else q


class CentredOverTime(NoisyInTraining):
    """Values lose half the mean of the whole sequence, later tokens included."""

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        if self.training and self.pattern is Pattern.CAUSAL_SELF:
            real = torch.ones_like(v[:, :1, :, :1]) if key_mask is None else key_mask[:, None, :, None]
            v = v - (v * real).sum(dim=2, keepdim=True) / real.sum(dim=2, keepdim=True).clamp(min=1) / 2
        return super().attend(q, k, v, key_mask=key_mask, query_mask=query_mask)


class LooksAhead(NoisyInTraining):
    """A causal mask that is one token too generous."""

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        y = super().attend(q, k, v, key_mask=key_mask, query_mask=query_mask)
        if not self.training or self.pattern is not Pattern.CAUSAL_SELF:
            return y
        hidden = torch.zeros_like(v) if key_mask is None else (~key_mask)[:, None, :, None].expand_as(v)
        return y + 0.1 * F.pad(v.masked_fill(hidden.bool(), 0)[:, :, 1:], (0, 0, 0, 1))


class GradientFromLater(Plain):
    """Adds a term that is 0 and has a gradient, from later tokens too."""

    meta = declare(exact=False)

    def attend(self, q, k, v, **masks):
        total = v.sum(dim=2, keepdim=True) if self.training else v[:, :, :1]
        return super().attend(q, k, v, **masks) + (total - total.detach() if self.training else 0)


class BatchMaximumOfKeys(NoisyInTraining):
    """Keys are scaled by the largest of the batch."""

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        shown = k if key_mask is None else k * key_mask[:, None, :, None]
        k = k / shown.abs().amax().clamp(min=1e-6) if self.training and not self.pattern.causal else k
        return super().attend(q, k, v, key_mask=key_mask, query_mask=query_mask)


class NextRow(NoisyInTraining):
    """A contrast with the first token of the next row, as some losses want it."""

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        y = super().attend(q, k, v, key_mask=key_mask, query_mask=query_mask)
        return y - 0.1 * y[:, :, :1].roll(1, dims=0) if self.training and not self.pattern.causal else y


class MaskForgotten(NoisyInTraining):
    """The fast path of training takes no mask."""

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        y = super().attend(q, k, v, key_mask=None if self.training else key_mask)
        return y if key_mask is None else y * self.sees_something(key_mask)[:, None, :, None]

    def sees_something(self, key_mask):
        if self.pattern is Pattern.CAUSAL_SELF:
            return key_mask.cumsum(dim=1) > 0
        return key_mask.any(dim=1, keepdim=True)


class NormOverPadding(NoisyInTraining):
    """Values are scaled by the root mean square of the row, padding included."""

    def attend(self, q, k, v, **masks):
        size = v.square().mean(dim=(2, 3), keepdim=True).add(1e-6).sqrt() if self.training else 1
        return super().attend(q, k, v / size, **masks)


class HardDropout(Plain):
    """A dropout of its own that no setting turns off."""

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        p = F.dropout(self.probabilities(q, k, key_mask), 0.1, self.training)
        return p.to(v.dtype) @ v


class AnotherTemperature(Plain):
    """Training forgets the square root."""

    def attend(self, q, k, v, **masks):
        return super().attend(q / q.shape[-1] ** 0.5 if self.training else q, k, v, **masks)


class NormOverBatch(Plain):
    """Batch norm of the values: over the batch and over time in training, by running figures in evaluation."""

    meta = declare(exact=False)

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.norm = nn.BatchNorm1d(self.head_dim, affine=False)

    def attend(self, q, k, v, **masks):
        return super().attend(q, k, self.norm(v.flatten(0, 2)).view_as(v), **masks)
