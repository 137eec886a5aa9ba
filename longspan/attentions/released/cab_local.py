"""Local attention as CAB released it: with a padding mask, padding is seen and the ends of the row count many times.

    y_i = sum_{j in N(i)} p_ij v_j      p_i = softmax_{j in N(i)}(q_i . k_j / sqrt(c))
    N(i) = (i - w, ..., i + w), or (i - w + 1, ..., i) when causal

The idea (`local`) is the same sliding window over the keys that exist and are real. The release looks up every position
of N(i) in the row, clamps positions beyond the row to its nearest end, and hides a key if its position is beyond the
row AND the key found there is padding, where it should be OR. So padding within the window is seen, and near an end the
first or the last key is counted once for every position that is missing, unless that key is padding. The row is as wide
as the batch. Without a mask the release is correct: positions beyond the row are hidden.

`window` is 15 in CAB's non-causal tasks, 16 in its causal ones. Code: Shark-NLP/CAB, modules/local_attention.py.
Departs from it in: nothing known; step-by-step decoding, which has no mask there, is that of `local`.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import SELF_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import KeyValueRing
from longspan.core.errors import UsageError
from longspan.kernels.block_sparse import sliding_window
from longspan.kernels.masked import attend_once


class CABLocal(HeadwiseAttention):
    meta = AttentionMeta(
        title="Local (CAB)",
        paper="arXiv:2210.07661",
        family="sparse",
        cost="n",
        patterns=SELF_PATTERNS,
        dropout="weights",
        fidelity=True,
        remark="With a padding mask, padding in the window is seen and the ends of the row are counted many times.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, window: int = 16, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if window < 1:
            raise UsageError(f"cab_local needs a window of at least 1 token, got window={window}.")
        self.window = window

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        left, right = (self.window - 1, 0) if self.pattern.causal else (self.window, self.window)
        options = {"left": left, "right": right, "dropout": self.active_dropout}
        if key_mask is None:
            return sliding_window(q, k, v, **options)
        q, k, v = (_lengthened(u, left, right) for u in (q, k, v))
        seen = _lengthened(torch.ones_like(key_mask)[:, None, :, None], left, right)[:, 0, :, 0]
        seen[:, :left] = key_mask[:, :1]
        seen[:, seen.shape[1] - right :] = key_mask[:, -1:]
        y = sliding_window(q, k, v, **options, key_mask=seen)
        return y[:, :, left : y.shape[2] - right]

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> KeyValueRing:
        return KeyValueRing.of(k, v, key_mask, slots=self.window)

    def advance(
        self, q: Float[Tensor, "b h c"], k: Float[Tensor, "b h c"], v: Float[Tensor, "b h e"], state: KeyValueRing
    ) -> tuple[Float[Tensor, "b h e"], KeyValueRing]:
        state = state.plus(k, v)
        return attend_once(q, state.k, state.v, (state.positions >= 0)[:, None]), state


def _lengthened(x: Tensor, left: int, right: int) -> Tensor:
    """The row [b h n c] with `left` copies of its first token before it and `right` copies of its last after it."""
    return torch.cat([x[:, :, :1].expand(-1, -1, left, -1), x, x[:, :, -1:].expand(-1, -1, right, -1)], dim=2)
