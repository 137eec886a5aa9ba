"""The Sparse Transformer as Long Range Arena released it: full attention under a causal mask of two merged patterns.

    y_i = sum_j p_ij v_j      p_i = softmax_j(q_i . k_j / sqrt(c) - 1e10 [j is hidden from i])

    seen: j <= i, and j in the same block of `block` tokens or j mod `block` = 0 or j mod `block` >= `block` - `summary`

The idea (`sparse_transformer`) is to save work, is bidirectional in an encoder, and has summaries only at the end of a
block. The release computes all n^2 scores, hides the future even in an encoder, adds the first token of every block to
the summaries, and gives all heads the same pattern. With `cls` the first token is the class token: it sees and is seen
by everything, and blocks are counted from the token after it; Pathfinder and Retrieval have none (cls=False). A pair is
hidden when either token is padded, so a padded query attends evenly to all tokens, padding included. Code:
google-research/long-range-arena, models/sparse_transformer. Departs from it in: nothing.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.masked import lowered_attention


class LRASparseTransformer(HeadwiseAttention):
    meta = AttentionMeta(
        title="Sparse Trans. (LRA)",
        paper="arXiv:2011.04006",
        family="sparse",
        cost="n^2",
        patterns=(Pattern.NONCAUSAL_SELF,),
        dropout="weights",
        fidelity=True,
        remark="Causal although it is an encoder: only the class token sees the whole row.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        block: int = 50,
        summary: int = 10,
        cls: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if block < 1 or summary < 0:
            raise UsageError(f"lra_sparse_transformer needs block >= 1 and summary >= 0, got {block=}, {summary=}.")
        self.block, self.summary, self.cls = block, summary, cls

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        allowed = self._pattern(q.shape[2], q.device)
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, None, :]
        if query_mask is not None:
            allowed = allowed & query_mask[:, None, :, None]
        return lowered_attention(q, k, v, allowed, dropout=self.active_dropout)

    def _pattern(self, n: int, device: torch.device) -> Bool[Tensor, "n n"]:
        place = torch.arange(n, device=device) - int(self.cls)
        i, j = place[:, None], place
        remainder = j % self.block
        summary = (remainder == 0) | (remainder >= self.block - self.summary)
        seen = (j <= i) & ((i // self.block == j // self.block) | summary)
        return seen | (i < 0) | (j < 0)
