"""Local attention: softmax attention in which a token sees its neighbourhood only.

    y_i = sum_{j in N(i)} p_ij v_j      p_i = softmax_{j in N(i)}(q_i . k_j / sqrt(c))

    shape = "window"   N(i) = {i - w, ..., i + w}, or {i - w + 1, ..., i} when causal (w keys, i itself among them)
    shape = "blocks"   N(i) = the block of w consecutive tokens that holds i, and `overlap` tokens on either side of
                       the block; only those up to i when causal

with w = `window`, over the real keys. Neighbours are counted by place in the row. Papers: arXiv:1508.04025 (the
idea), arXiv:2210.07661 (the sliding window), arXiv:2011.04006 (the blocks). Departs from them in: a padded token is
never seen, and blocks are consecutive tokens.
"""

from dataclasses import dataclass
from typing import Any, Literal

from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.attentions.base import SELF_PATTERNS, AttentionMeta, DecodeState, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels import fused, ring
from longspan.kernels.banded import banded, blocked
from longspan.kernels.masked import attend_once
from longspan.kernels.packing import Layout, left_align


@dataclass
class Ring(DecodeState):
    """The last keys and values; the token at place p of a row lies in slot p modulo the number of slots."""

    k: Float[Tensor, "b h s c"]
    v: Float[Tensor, "b h s e"]
    lengths: Int[Tensor, " b"]


class Local(HeadwiseAttention):
    meta = AttentionMeta(
        title="Local",
        paper="arXiv:1508.04025",
        family="sparse",
        cost="n",
        patterns=SELF_PATTERNS,
        dropout="weights",
        limit="window=4096",
        remark="CAB counts `window` keys on each side, or `window` keys in all when causal; LRA means blocks.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        window: int = 16,
        shape: Literal["window", "blocks"] = "window",
        overlap: int = 0,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if window < 1:
            raise UsageError(f"local needs a window of at least 1 token, got window={window}.")
        if overlap < 0 or (overlap and shape == "window"):
            raise UsageError(
                f"overlap counts keys beside a block, got overlap={overlap} with shape={shape!r}; use shape='blocks'."
            )
        self.window, self.shape, self.overlap = window, shape, overlap

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        dropout = self.dropout if self.training else 0.0
        if self.shape == "blocks":
            block, overlap, causal = self.window, self.overlap, self.pattern.causal
            return blocked(q, k, v, block=block, overlap=overlap, causal=causal, key_mask=key_mask, dropout=dropout)
        left, right = self._sides
        return banded(q, k, v, left=left, right=right, key_mask=key_mask, dropout=dropout)

    def attend_packed(
        self, q: Float[Tensor, "t h c"], k: Float[Tensor, "t h c"], v: Float[Tensor, "t h e"], layout: Layout
    ) -> Float[Tensor, "t h e"]:
        if self.shape == "blocks":
            return super().attend_packed(q, k, v, layout)
        dropout = self.dropout if self.training else 0.0
        if layout.together and fused.fits(q, v) and not fused.is_counted():
            return fused.in_rows(q, k, v, layout, band=self._sides, dropout=dropout)
        q, k, v = (rearrange(u, "t h c -> 1 h t c") for u in (q, k, v))
        left, right = self._sides
        places = layout.places(apart=self.window + 1)[None]
        y = banded(q, k, v, left=left, right=right, places=places, dropout=dropout)
        return rearrange(y, "1 h t e -> t h e")

    @property
    def _sides(self) -> tuple[int, int]:
        """How many keys to the left and to the right are seen."""
        return (self.window - 1, 0) if self.pattern.causal else (self.window, self.window)

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Ring:
        keys, lengths = left_align(rearrange(k, "b h m c -> b m h c"), key_mask)
        values, _ = left_align(rearrange(v, "b h m e -> b m h e"), key_mask)
        return Ring(ring.fill(keys, lengths, self._slots), ring.fill(values, lengths, self._slots), lengths)

    def advance(
        self, q: Float[Tensor, "b h c"], k: Float[Tensor, "b h c"], v: Float[Tensor, "b h e"], state: Ring
    ) -> tuple[Float[Tensor, "b h e"], Ring]:
        t = state.lengths
        keys, values = ring.put(state.k, k, t), ring.put(state.v, v, t)
        first = t - self.window + 1 if self.shape == "window" else t // self.window * self.window - self.overlap
        visible = ring.places(t, self._slots) >= first.clamp(min=0)[:, None]
        return attend_once(q, keys, values, visible[:, None]), Ring(keys, values, t + 1)

    @property
    def _slots(self) -> int:
        return self.window + self.overlap
