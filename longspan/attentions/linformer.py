"""Linformer: keys and values are projected along the length into a fixed number of slots, which queries attend to.

    y_i = softmax_r(q_i . k'_r / sqrt(c)) v'      k' = E^T k      v' = F^T v

E and F have a learned row of `rank` numbers for every position of the sequence; a shorter sequence uses the first rows,
so the maximum length must be known at construction. `sharing` is the paper's: "none" gives each head its own E and F,
"headwise" shares one pair among all heads, "key-value" uses one matrix for keys, values and all heads. A padded token
adds nothing to any slot. Paper: arXiv:2006.04768. Departs from the paper in: one set of matrices per layer, never one
for all layers.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import DecodeState
from longspan.core.errors import UsageError
from longspan.kernels.landmark.pieces import fused_attention, project_length


@dataclass
class ProjectedContext(DecodeState):
    """E^T k and F^T v of the context, computed once."""

    k: Float[Tensor, "b h r c"]
    v: Float[Tensor, "b h r e"]


class Linformer(HeadwiseAttention):
    meta = AttentionMeta(
        title="Linformer",
        paper="arXiv:2006.04768",
        family="low rank",
        cost="n",
        rowwise=True,
        patterns=(Pattern.NONCAUSAL_SELF, Pattern.NONCAUSAL_CROSS, Pattern.CAUSAL_CROSS),
        length_bound=True,
        places="positions",
        dropout="weights",
        remark="Needs the longest length at construction: max_length for self, max_context for cross attention.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        rank: int = 128,
        sharing: Literal["none", "headwise", "key-value"] = "headwise",
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if rank < 1:
            raise UsageError(f"linformer needs at least 1 slot, got rank={rank}.")
        longest = self._longest("max_context" if self.pattern.cross else "max_length")
        shape = (heads, longest, rank) if sharing == "none" else (longest, rank)
        self.to_key_slots = _matrix(shape)
        self.to_value_slots = self.to_key_slots if sharing == "key-value" else _matrix(shape)

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        projected = self.begin(k, v, key_mask=key_mask)
        return fused_attention(q, projected.k, projected.v, dropout=self.dropout if self.training else 0.0)

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> ProjectedContext:
        m = k.shape[2]
        self._check_room(m, self.to_key_slots.shape[-2], "keys")
        if key_mask is not None:
            k, v = (u.masked_fill(~key_mask[:, None, :, None], 0) for u in (k, v))
        e, f = (matrix[..., :m, :] for matrix in (self.to_key_slots, self.to_value_slots))
        return ProjectedContext(project_length(e, k), project_length(f, v))

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e"] | None,
        state: ProjectedContext,
    ) -> tuple[Float[Tensor, "b h e"], ProjectedContext]:
        return F.scaled_dot_product_attention(q[:, :, None], state.k, state.v)[:, :, 0], state


def _matrix(shape: tuple[int, ...]) -> nn.Parameter:
    bound = shape[-1] ** -0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
