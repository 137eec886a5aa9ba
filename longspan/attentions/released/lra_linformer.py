"""Linformer as Long Range Arena released it: sixteen slots for every task, and masks ignored.

    y_i = softmax_r(q_i . k'_r / sqrt(c)) v'      k' = E^T k      v' = E^T v

One E of [longest, `rank`] serves keys, values and all heads of a layer. The idea (`linformer`) has 128 slots or more, a
separate matrix for the values, and leaves padding out; here every token enters the slots. All tasks use rank 16, since
settings with another rank do not reach the layer. Code: google-research/long-range-arena, models/linformer. Departs
from it in: nothing.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.landmark.pieces import fused_attention, project_length


class LRALinformer(HeadwiseAttention):
    meta = AttentionMeta(
        title="Linformer (LRA)",
        paper="arXiv:2011.04006",
        family="low rank",
        cost="n",
        patterns=(Pattern.NONCAUSAL_SELF,),
        rowwise=True,
        length_bound=True,
        dropout="weights",
        fidelity=True,
        remark="Sixteen slots, one matrix for keys and values, and padding enters the slots.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, rank: int = 16, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if rank < 1:
            raise UsageError(f"lra_linformer needs at least 1 slot, got rank={rank}.")
        self.to_slots = nn.Parameter(nn.init.xavier_uniform_(torch.empty(self._longest("max_length"), rank)))

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        m = k.shape[2]
        self._check_room(m, len(self.to_slots), "tokens")
        k, v = (project_length(self.to_slots[:m], u) for u in (k, v))
        return fused_attention(q, k, v, dropout=self.active_dropout)
