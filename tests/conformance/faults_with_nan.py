"""Mechanisms whose results are NaN where a careless comparison does not look."""

import torch

from tests.conformance.right import Plain, declare


class NanWithDropout(Plain):
    """Dropout on the weights, renewed by a sum that may be 0."""

    meta = declare(dropout="weights")

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        p = self.probabilities(q, k, key_mask)
        if self.active_dropout:
            p = p * (torch.rand_like(p) > self.active_dropout)
            p = p * 0 / (p * 0).sum(dim=-1, keepdim=True)
        return p.to(v.dtype) @ v


class NanInSingle(Plain):
    """Not a number in float32 beyond 500 tokens, and right in bfloat16 and float64."""

    meta = declare()

    def attend(self, q, k, v, **masks):
        y = super().attend(q, k, v, **masks)
        return y * torch.nan if q.dtype == torch.float32 and 500 < k.shape[2] < 1024 else y
