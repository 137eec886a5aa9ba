"""Longformer as Long Range Arena released it: full attention under a band mask, and unused global projections.

    y_i = sum_j p_ij v_j      p_i = softmax_j(q_i . k_j / sqrt(c) - 1e10 [j is hidden from i])

    seen: -255 <= j - i <= 256 for `window` = 512; of an odd window both sides are equal

The idea (`longformer`) is a window in linear time with a few tokens that see, and are seen by, everything. The release
computes all n^2 scores and never names a global token, not even the class token, which thus sees no further than any
other. The second set of query, key and value maps, for global tokens, is created and counted but does not affect the
output and gets no gradient. A pair is hidden when either token is padded, so a padded query attends evenly to all
tokens. Code: google-research/long-range-arena, models/longformer. Departs from it in: the output of the unused maps,
which is selected away there, is not computed.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.masked import lowered_attention


class LRALongformer(HeadwiseAttention):
    meta = AttentionMeta(
        title="Longformer (LRA)",
        paper="arXiv:2011.04006",
        family="sparse",
        cost="n^2",
        patterns=(Pattern.NONCAUSAL_SELF,),
        dropout="weights",
        fidelity=True,
        remark="Without global tokens, yet with the parameters of their projections.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, window: int = 512, bias: bool = True, **shell: Any):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        if window < 1:
            raise UsageError(f"lra_longformer needs a window of at least 1 token, got window={window}.")
        self.right = window // 2
        self.left = window - self.right - 1
        self.query_global, self.key_global, self.value_global = (
            nn.Linear(dim, self.inner, bias=bias) for _ in range(3)
        )

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        place = torch.arange(q.shape[2], device=q.device)
        lag = place - place[:, None]
        allowed = (lag >= -self.left) & (lag <= self.right)
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, None, :]
        if query_mask is not None:
            allowed = allowed & query_mask[:, None, :, None]
        return lowered_attention(q, k, v, allowed, dropout=self.active_dropout)
