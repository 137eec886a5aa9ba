"""Compressive Transformer: Transformer-XL whose oldest memories are compressed instead of lost.

    y_i = sum_j softmax_j(s_ij) v_j      over j in [compressed, memory, segment up to i]      compressed = f(evicted)

with the scores s_ij by relative positions of Transformer-XL. Tokens that leave the memory of the last `memory` tokens
are compressed, `ratio` into one; the newest `compressed` of these are kept. Both lie in what `carried` passes on, as
tokens of this layer's input. f is a convolution with that stride (`compression="conv"`), one with a filter for each
channel ("channels"), or a mean or maximum. It learns only from the attention reconstruction loss, in which everything
else is constant, times `auxiliary`:

    || attend(x, evicted) - attend(x, f(evicted)) ||^2      by content alone, a mean over queries and channels

`forward` computes a segment without a past. A language model reads a row in segments of `segment` tokens (0: whole
rows); sizes are those of PG-19 in the paper. noncausal_self sees both directions inside a segment, and the same past;
two sequences have no distances between them, so there are no cross patterns. Compared with softmax attention it adds
W_r, u, w and f: 8.4 % of an encoder block, with "conv" 25 %. Paper: arXiv:1911.05507. Departs from the paper in:
"channels" is the default, since a full convolution exceeds the ten per cent by which models may differ; tokens are
evicted in whole groups of `ratio`, so that the memory holds up to ratio - 1 more; u and w belong to each layer.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import reduce
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, AttentionMeta, Pattern
from longspan.attentions.relative import RelativeAttention, counts, rows, segments
from longspan.attentions.states import Carry, Memory
from longspan.core.errors import UsageError
from longspan.kernels.masked import masked_attention
from longspan.kernels.packing import last_before
from longspan.kernels.precision import at_least_single


@dataclass
class Memories(Carry):
    """The last tokens of each row, and older ones compressed, both right-aligned."""

    x: Float[Tensor, "b m d"]
    mask: Bool[Tensor, "b m"]
    old: Float[Tensor, "b o d"]
    old_mask: Bool[Tensor, "b o"]

    def parts(self) -> tuple[Memory, Memory]:
        return Memory(self.x, self.mask), Memory(self.old, self.old_mask)


class CompressiveTransformer(RelativeAttention):
    meta = AttentionMeta(
        title="Compressive Transformer",
        paper="arXiv:1911.05507",
        family="recurrence",
        cost="n^2",
        patterns=SELF_PATTERNS,
        positions=True,
        places="distances",
        dropout="weights",
        carries="segments",
        auxiliary_loss=True,
        version=2,  # nothing lies between the compressed tokens and the memory
        remark="Linear in a text that is read in segments, which is what CAB's table counts; here a row is one.",
    )
    carry_type = Memories

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        memory: int = 512,
        compressed: int = 512,
        ratio: int = 2,
        segment: int = 512,
        compression: Literal["channels", "conv", "mean", "max"] = "channels",
        auxiliary: float = 1.0,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if min(memory, compressed, segment) < 0 or ratio < 1 or auxiliary < 0:
            raise UsageError(
                "A Compressive Transformer counts tokens from 0, compresses at least 1 into one, and has an auxiliary "
                f"loss of at least 0, got memory={memory}, compressed={compressed}, segment={segment}, ratio={ratio} "
                f"and auxiliary={auxiliary}."
            )
        self.memory, self.compressed, self.ratio, self.segment = memory, compressed, ratio, segment or None
        self.compression, self.auxiliary = compression, auxiliary
        if compression in ("conv", "channels"):
            self.compress = nn.Conv1d(dim, dim, ratio, stride=ratio, groups=dim if compression == "channels" else 1)

    def carried(
        self,
        x: Float[Tensor, "b n d"],
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        carry: Memories | None = None,
    ) -> tuple[Float[Tensor, "b n d"], Memories]:
        if carry is None:
            y = self(x, mask=mask)
        else:
            past = joined(*carry.parts())
            y = self.attend_after(x, mask, past.x, past.mask)
        recent = None if carry is None else Memory(carry.x, carry.mask)
        everything = Memory.after(recent, x, mask, x.shape[1] + (0 if recent is None else recent.x.shape[1]))
        evicted, evicted_mask, kept = self.evict(everything)
        none = x.new_zeros(len(x), 0, x.shape[2]), torch.zeros(len(x), 0, dtype=torch.bool, device=x.device)
        old = Memory(*(none if carry is None else (carry.old, carry.old_mask)))
        if evicted.shape[1]:
            new, new_mask = self.squeeze(evicted.detach()), evicted_mask[:, :: self.ratio]
            if self.training and self.compression in ("conv", "channels"):
                loss, asked = self.reconstruction(x.detach(), mask, evicted.detach(), evicted_mask, new, new_mask)
                y = self.with_auxiliary(y, self.auxiliary * loss, asked)
            old = Memory.after(old, new, new_mask, self.compressed)
        return y, Memories(kept.x, kept.mask, old.x, old.mask)

    def in_segments(
        self,
        x: Float[Tensor, "b n d"],
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        carry: Memories | None = None,
    ) -> tuple[Float[Tensor, "b n d"], Memories]:
        """All segments at once, as rows of a batch: the token counts determine how much has been compressed."""
        b, n, _ = x.shape
        length, ratio = self.segment or n, self.ratio
        recent, old = (None, None) if carry is None else carry.parts()
        before, (each, real) = 0 if recent is None else recent.x.shape[1], segments(x, mask, length)
        whole = Memory.whole(recent, x.detach(), mask)
        evicted, evicted_mask, kept = self.evict(Memory.after(None, whole.x, whole.mask, whole.x.shape[1]))
        new, new_mask = self.squeeze(evicted) if evicted.shape[1] else evicted, evicted_mask[:, ::ratio]
        compressed = Memory.whole(old, new.detach(), new_mask)

        count = counts(whole.mask, before, length)
        gone = (count - self.memory).clamp(min=0) // ratio * ratio  # before each segment, and in total
        made = gone // ratio
        widest = min(self.memory + ratio - 1, before + (n - 1) // length * length)
        near, place = last_before(whole.x, whole.mask, count[:, :-1], widest)
        near_mask = place >= gone[:, :-1, None]
        ends = made[:, :-1] + (0 if old is None else old.mask.sum(dim=1, keepdim=True))
        widest = min(self.compressed, compressed.x.shape[1])
        far, place = last_before(compressed.x, compressed.mask, ends, widest)
        parts = (Memory(u.flatten(0, 1), seen.flatten(0, 1)) for u, seen in ((near, near_mask), (far, place >= 0)))
        past = joined(*parts)
        y = rows(self.attend_after(each, real, past.x, past.mask), b, n)

        if evicted.shape[1] and self.training and self.compression in ("conv", "channels"):
            widest = min(evicted.shape[1], (length + ratio - 1) // ratio * ratio)
            source, place = last_before(evicted, evicted_mask, gone[:, 1:], widest)
            result, group = last_before(new, new_mask, made[:, 1:], widest // ratio)
            source_mask, result_mask = place >= gone[:, :-1, None], group >= made[:, :-1, None]
            compared = (u.flatten(0, 1) for u in (source, source_mask, result, result_mask))
            loss, asked = self.reconstruction(each.detach(), real, *compared)
            y = self.with_auxiliary(y, self.auxiliary * loss, asked)
        old = Memory.after(None, compressed.x, compressed.mask, self.compressed)
        return y, Memories(kept.x, kept.mask, old.x, old.mask)

    def evict(self, everything: Memory) -> tuple[Float[Tensor, "b e d"], Bool[Tensor, "b e"], Memory]:
        """The evicted tokens, in whole left-aligned groups, which of them are real, and the remaining memory."""
        x, mask = everything.x, everything.mask
        width, count = x.shape[1], mask.sum(dim=1)
        leaving = (count - self.memory).clamp(min=0) // self.ratio * self.ratio
        place = torch.arange(max(0, width - self.memory) // self.ratio * self.ratio, device=x.device)
        index: Int[Tensor, "b e"] = ((width - count)[:, None] + place).clamp(max=width - 1)
        evicted = x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))
        staying = min(width, self.memory + self.ratio - 1)
        stays = torch.arange(width - staying, width, device=x.device) >= (width - count + leaving)[:, None]
        kept = Memory(x[:, width - staying :], stays)
        return evicted, place < leaving[:, None], kept

    def squeeze(self, evicted: Float[Tensor, "b e d"]) -> Float[Tensor, "b o d"]:
        """Every `ratio` tokens compressed into one."""
        if self.compression in ("conv", "channels"):
            return self.compress(evicted.mT).mT
        return reduce(evicted, "b (o r) d -> b o d", self.compression, r=self.ratio)

    def reconstruction(
        self,
        x: Float[Tensor, "b n d"],
        mask: Bool[Tensor, "b n"] | None,
        evicted: Float[Tensor, "b e d"],
        evicted_mask: Bool[Tensor, "b e"],
        new: Float[Tensor, "b o d"],
        new_mask: Bool[Tensor, "b o"],
    ) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        """How far attention to the compressed tokens is from attention to the originals, and over how many queries."""
        q = self._split(fixed(self.query, x))

        def read(tokens: Float[Tensor, "b e d"], seen: Bool[Tensor, "b e"]) -> Float[Tensor, "b h n c"]:
            k, v = (self._split(fixed(project, tokens)) for project in (self.key, self.value))
            return masked_attention(q, k, v, seen[:, None, None])

        apart = at_least_single(read(evicted, evicted_mask) - read(new, new_mask)).square().mean(dim=(1, 3))
        asked = evicted_mask.any(dim=1, keepdim=True).expand(x.shape[:2])
        asked = asked if mask is None else asked & mask
        count = asked.sum()
        return apart.masked_fill(~asked, 0).sum() / count.clamp(min=1), count


def joined(recent: Memory, old: Memory) -> Memory:
    """The compressed tokens and then the last ones, right-aligned: no empty place between them adds to a distance."""
    return Memory.after(old, recent.x, recent.mask, old.x.shape[1] + recent.x.shape[1])


def fixed(project: nn.Linear, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n e"]:
    """A projection with its parameters detached."""
    return F.linear(x, project.weight.detach(), None if project.bias is None else project.bias.detach())
