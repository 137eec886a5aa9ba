"""Local attention as Long Range Arena released it: regularly spaced tokens instead of a neighbourhood.

    y_i = sum_{j in N(i)} p_ij v_j      p_i = softmax_{j in N(i)}(q_i . k_j / sqrt(c) + b_ij)
    N(i) = {j < M : j = i mod groups}      M = block * groups > n

The idea (`local(shape=blocks)`) is blocks of consecutive tokens. The release pads the row of n tokens with zeros to the
next multiple M of `block`, by a whole block when n is already a multiple, and reshapes it to (block, groups) instead of
(groups, block): a group is spread over the whole row. The zeros at the end count as tokens. The mask, however, is
reshaped to (groups, block): b = -1e10 between the s-th and the t-th token of group g when the token at g * block + s or
g * block + t is padding, and 0 elsewhere. So padding is seen and real tokens are hidden. A query from which everything
is hidden gets the mean of its group: next to 1e10 all logits are equal in single precision. The result depends on the
width of the batch.

`block` is 50 in the release, and 64 for Image and Pathfinder. Code: google-research/long-range-arena, models/local.
Departs from it in: without a mask, where the release cannot run, nothing is hidden.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.masked import lowered_attention


class LRALocal(HeadwiseAttention):
    meta = AttentionMeta(
        title="Local (LRA)",
        paper="arXiv:2011.04006",
        family="sparse",
        cost="n",
        patterns=(Pattern.NONCAUSAL_SELF,),
        dropout="weights",
        fidelity=True,
        remark="Attends to every groups-th token instead of a neighbourhood, with the padding mask on other tokens.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, block: int = 50, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if block < 1:
            raise UsageError(f"lra_local needs blocks of at least 1 token, got block={block}.")
        self.block = block

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
        extra = self.block - n % self.block
        groups = (n + extra) // self.block
        q, k, v = (rearrange(F.pad(u, (0, 0, 0, extra)), "b h (s g) c -> (b g) h s c", g=groups) for u in (q, k, v))
        real = k.new_ones(len(k), 1, self.block, dtype=torch.bool)
        if key_mask is not None:
            real = rearrange(F.pad(key_mask, (0, extra), value=True), "b (g s) -> (b g) 1 s", g=groups)
        both = real[..., :, None] & real[..., None, :]
        y = lowered_attention(q, k, v, both, dropout=self.active_dropout)
        return rearrange(y, "(b g) h s e -> b h (s g) e", g=groups)[:, :, :n]
