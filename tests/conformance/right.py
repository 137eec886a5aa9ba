"""A correct mechanism, written as plainly as possible; flawed ones are made from it by breaking one thing."""

import torch

from longspan.attentions import ALL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern


def declare(**changes) -> AttentionMeta:
    """The declaration of a correct mechanism, with some claims changed."""
    claims = {"title": "Plain", "paper": "none", "family": "test", "cost": "n^2", "patterns": ALL_PATTERNS}
    return AttentionMeta(**(claims | {"exact": True} | changes))


class Plain(HeadwiseAttention):
    """Softmax attention; everything it declares is so."""

    meta = declare()

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        return self.probabilities(q, k, key_mask).to(v.dtype) @ v

    def probabilities(self, q, k, key_mask):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        seen = torch.ones_like(scores[0, 0], dtype=torch.bool)
        if self.pattern is Pattern.CAUSAL_SELF:
            seen = seen.tril()
        if key_mask is not None:
            seen = seen & key_mask[:, None, None, :]
        single = torch.promote_types(q.dtype, torch.float32)
        return torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1, dtype=single).masked_fill(~seen, 0)
