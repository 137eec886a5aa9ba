"""Mechanisms that raise: at odd lengths, in the constructor, or by leaving the interpreter."""

from longspan.attentions import AttentionMeta, HeadwiseAttention, Pattern

CLAIM = AttentionMeta(title="Crash", paper="none", family="faulty", cost="n", patterns=(Pattern.NONCAUSAL_SELF,))


class _Mean(HeadwiseAttention):
    meta = CLAIM

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        if key_mask is None:
            return v.mean(dim=2, keepdim=True).expand_as(q)
        real = key_mask[:, None, :, None]
        total = v.masked_fill(~real, 0).sum(dim=2, keepdim=True)
        return (total / real.sum(dim=2, keepdim=True).clamp(min=1)).expand_as(q)


class OddLength(_Mean):
    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        if k.shape[2] == 63:
            raise IndexError(f"length {k.shape[2]} is not a multiple of 2")
        return super().attend(q, k, v, key_mask=key_mask, query_mask=query_mask)


class Unbuildable(_Mean):
    def __init__(self, dim, heads, pattern, **shell):
        raise RuntimeError("no luck today")


class Leaves(_Mean):
    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        raise SystemExit(3)


class Interrupted(_Mean):
    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        raise KeyboardInterrupt
