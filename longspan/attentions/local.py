"""Local attention: softmax attention in which a token sees only its neighbourhood.

    y_i = sum_{j in N(i)} p_ij v_j      p_i = softmax_{j in N(i)}(q_i . k_j / sqrt(c))

    shape = "window"   N(i) = {i - w, ..., i + w}, or {i - w + 1, ..., i} when causal (w keys, i itself among them)
    shape = "blocks"   N(i) = the block of w consecutive tokens that holds i, and `overlap` tokens on either side of
                       the block; only those up to i when causal

with w = `window`, over the real keys. Neighbours are counted by position in the row. With `bias_table` blocks learn a
number for each head, position in the block and neighbour, which is added to the score. Papers: arXiv:1508.04025 (the
idea), arXiv:2210.07661 (the sliding window), arXiv:2011.04006 (the blocks), arXiv:2204.04667 (the bias, in its authors'
code). Departs from them in: a padded token is never seen, and blocks are consecutive tokens.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import KeyValueRing
from longspan.core.errors import UsageError
from longspan.kernels.block_sparse import overlapping_blocks, packed_sliding_window, sliding_window
from longspan.kernels.masked import attend_once
from longspan.kernels.packing import Layout, turn


class Local(HeadwiseAttention):
    meta = AttentionMeta(
        title="Local",
        paper="arXiv:1508.04025",
        family="sparse",
        cost="n",
        patterns=SELF_PATTERNS,
        places="distances",
        dropout="weights",
        limit="window=4096, bias_table=False",
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
        bias_table: bool = False,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if window < 1:
            raise UsageError(f"local needs a window of at least 1 token, got window={window}.")
        if overlap < 0 or (overlap and shape == "window"):
            raise UsageError(
                f"overlap counts keys beside a block, got overlap={overlap} with shape={shape!r}; use shape='blocks'."
            )
        if bias_table and shape == "window":
            raise UsageError("bias_table=True is a number for each place in a block, got shape='window'; use 'blocks'.")
        self.window, self.shape, self.overlap, self.bias_table = window, shape, overlap, None
        if bias_table:
            self.bias_table = nn.Parameter(torch.empty(heads, window, window + 2 * overlap))
            nn.init.normal_(self.bias_table, std=0.02)  # a truncation at 100 deviations has no effect

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        options = {"key_mask": key_mask, "dropout": self.active_dropout}
        if self.shape == "window":
            left, right = self._sides
            return sliding_window(q, k, v, left=left, right=right, **options)
        options |= {
            "block": self.window,
            "overlap": self.overlap,
            "bias": self.bias_table,
            "causal": self.pattern.causal,
        }
        if key_mask is None:
            return overlapping_blocks(q, k, v, **options)
        first = key_mask.long().argmax(dim=1)  # blocks are counted from the first token of a row
        q, k, v, options["key_mask"] = *(turn(u, first, dim=2) for u in (q, k, v)), turn(key_mask, first, dim=1)
        y = turn(overlapping_blocks(q, k, v, **options), -first, dim=2)
        before = key_mask.cumsum(dim=1) == 0  # rolled to the end, where it saw the whole row
        return y.masked_fill(before[:, None, :, None], 0) if self.pattern.causal else y

    def attend_packed(
        self, q: Float[Tensor, "t h c"], k: Float[Tensor, "t h c"], v: Float[Tensor, "t h e"], layout: Layout
    ) -> Float[Tensor, "t h e"]:
        if self.shape == "blocks":
            return super().attend_packed(q, k, v, layout)
        left, right = self._sides
        return packed_sliding_window(q, k, v, layout, left=left, right=right, dropout=self.active_dropout)

    @property
    def _sides(self) -> tuple[int, int]:
        """How many keys to the left and to the right are seen."""
        return (self.window - 1, 0) if self.pattern.causal else (self.window, self.window)

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> KeyValueRing:
        return KeyValueRing.of(k, v, key_mask, slots=self.window + self.overlap)

    def advance(
        self, q: Float[Tensor, "b h c"], k: Float[Tensor, "b h c"], v: Float[Tensor, "b h e"], state: KeyValueRing
    ) -> tuple[Float[Tensor, "b h e"], KeyValueRing]:
        t, state = state.lengths, state.plus(k, v)
        first = t - self.window + 1 if self.shape == "window" else t // self.window * self.window - self.overlap
        visible = state.positions >= first.clamp(min=0)[:, None]
        if self.bias_table is None:
            return attend_once(q, state.k, state.v, visible[:, None]), state
        place = (state.positions - first[:, None]).clamp(0, self.bias_table.shape[2] - 1)
        scores = self.bias_table[:, (t % self.window)[:, None], place].to(q.dtype)
        scores = rearrange(scores, "h b j -> b h 1 j").masked_fill(~visible[:, None, None], -torch.inf)
        return F.scaled_dot_product_attention(q[:, :, None], state.k, state.v, attn_mask=scores)[:, :, 0], state
