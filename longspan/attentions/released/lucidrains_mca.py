"""Memory-compressed attention as in the common PyTorch package: compressed after projection, and masks inverted.

    y_i = softmax_s(q_i . k'_s / sqrt(d)) v'_s      k' = [k_null, conv(k)]      v' = [v_null, conv(v)]

d is the width of the whole model, not of a head. One strided convolution, of `factor` tokens and the channels of a
head, serves keys and values; a learned null key and value are seen by all. The idea (`mca`) compresses before the
projections. Zeros are put before the first token to make whole blocks, so the length of a row determines where its
blocks begin, and extending a row changes its earlier blocks. When causal, a block is seen from its last token on. With
a mask a block with any real token is seen only by padded queries: the comparison of the two masks is inverted.

Code: lucidrains/memory-compressed-attention 0.0.7. Departs from it in: nothing.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError


class LucidrainsMCA(HeadwiseAttention):
    meta = AttentionMeta(
        title="MCA (lucidrains)",
        paper="arXiv:1801.10198",
        family="downsampling",
        cost="n^2",
        patterns=SELF_PATTERNS,
        dropout="weights",
        fidelity=True,
        remark="Blocks move with the length of the row, and with a mask real queries see nothing but a learned value.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, factor: int = 3, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if factor < 1:
            raise UsageError(f"lucidrains_mca makes one token of at least 1, got factor={factor}.")
        self.factor = factor
        self.compress = nn.Conv1d(self.inner, self.inner, factor, stride=factor, groups=heads)
        self.null_key = nn.Parameter(torch.zeros(1, 1, self.inner))
        self.null_value = nn.Parameter(torch.zeros(1, 1, self.inner))

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        n = q.shape[2]
        before = -n % self.factor
        k, v = self._with_null(k, self.null_key, before), self._with_null(v, self.null_value, before)
        visible = torch.ones(1, 1, n, k.shape[2] - 1, dtype=torch.bool, device=q.device)
        if self.pattern.causal:
            last = torch.arange(1, visible.shape[3] + 1, device=q.device) * self.factor - 1 - before
            visible = visible & (last <= torch.arange(n, device=q.device)[:, None])
        if key_mask is not None:
            blocks = F.pad(key_mask, (before, 0), value=True).unflatten(1, (-1, self.factor)).any(dim=2)
            visible = visible & ~key_mask[:, None, :, None] & blocks[:, None, None]
        visible = F.pad(visible, (1, 0), value=True)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, dropout_p=self.active_dropout, scale=self.inner**-0.5
        )

    def _with_null(
        self, x: Float[Tensor, "b h n c"], null: Float[Tensor, "1 1 d"], before: int
    ) -> Float[Tensor, "b h s c"]:
        x = F.pad(rearrange(x, "b h n c -> b (h c) n"), (before, 0))
        x = rearrange(self.compress(x), "b (h c) s -> b h s c", h=self.heads)
        null = repeat(null, "1 1 (h c) -> b h 1 c", b=len(x), h=self.heads)
        return torch.cat([null.to(x.dtype), x], dim=2)
