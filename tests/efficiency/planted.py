"""Mechanisms that fail, each in its own way; all but one run on short rows."""

import torch

from longspan.attentions import AttentionMeta, HeadwiseAttention, Pattern

SHORT = 40  # rows above this are too long for them


def claim(title, pattern=Pattern.NONCAUSAL_SELF):
    return AttentionMeta(title=title, paper="none", family="planted", cost="n", patterns=(pattern,))


class _Mean(HeadwiseAttention):
    meta = claim("Mean")

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        if k.shape[2] > SHORT:
            self.refuse()
        return v.mean(dim=2, keepdim=True).expand_as(q)

    def refuse(self):
        raise NotImplementedError


class Hungry(_Mean):
    meta = claim("Hungry")

    def refuse(self):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")


class HungryOnlyInTraining(_Mean):
    meta = claim("Hungry in training")

    def refuse(self):
        if self.training:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 TB")


class Broken(_Mean):
    meta = claim("Broken")

    def refuse(self):
        raise IndexError("no more than 40\nand a second line")


class Leaves(_Mean):
    meta = claim("Leaves")

    def refuse(self):
        raise SystemExit(3)


class Bound(_Mean):
    meta = claim("Bound")

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        assert self.max_length is not None
        if self.max_length > SHORT:
            raise ValueError(f"rows of {self.max_length} are more than it has parameters for")


class OnlyCausal(_Mean):
    meta = claim("Only causal", Pattern.CAUSAL_SELF)


class Interrupted(_Mean):
    meta = claim("Interrupted")

    def refuse(self):
        raise KeyboardInterrupt


class CoarseWhenLong(_Mean):
    """Right in double precision, wrong in any other precision on long rows: a fast kernel with a bug."""

    meta = claim("Coarse when long")

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        y = v.mean(dim=2, keepdim=True).expand_as(q)
        return y if q.dtype == torch.float64 or k.shape[2] <= SHORT else 1.1 * y


class OnlySingle(_Mean):
    """Does not support double precision at all."""

    meta = claim("Only single")

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        if q.dtype == torch.float64:
            raise TypeError("no kernel for double precision")
        return v.mean(dim=2, keepdim=True).expand_as(q)


class Endless(OnlySingle):
    meta = claim("Endless")

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        return super().attend(q, k, v) / 0
