"""Efficient attention: a softmax over the channels of each query and one over positions for each channel of the keys.

    y_i = sum_f softmax_f(q_i) G_f      G_f = sum_j softmax_j(k_jf) v_j

over the real keys j: every channel f of the keys is an attention map of its own, and a query says how much it takes
from each. Weights add up to one, so there is neither a denominator nor any scaling by the width. In causal self
attention each position has the maps of its own prefix, so the last row equals that of the non-causal form:

    G_tf = sum_{j <= t} exp(k_jf) v_j / sum_{j <= t} exp(k_jf)

Decoding only needs to keep the sums of G. It has the same parameters as softmax attention. Paper: arXiv:1812.01243.
Departs from the paper in: the residual and the batch norm around it belong to the backbone, and the causal form is not
in the paper.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import DecodeState
from longspan.kernels import bounded_memory
from longspan.kernels.bounded_memory import mean, merge, pool
from longspan.kernels.landmark import landmark_pool
from longspan.kernels.precision import at_least_single, without_autocast


@dataclass
class ChannelSums(DecodeState):
    """Weighted sums of values, the sum of weights as last column, relative to the channel's largest key so far."""

    values: Float[Tensor, "b h c e_plus_1"]
    largest: Float[Tensor, "b h c 1"]


class EfficientAttention(HeadwiseAttention):
    meta = AttentionMeta(
        title="Efficient attention",
        paper="arXiv:1812.01243",
        family="kernel",
        cost="n",
        rowwise=True,
        patterns=ALL_PATTERNS,
        remark="CAB's table denies causal self attention; a running softmax of each channel gives it.",
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
        if self.pattern is Pattern.CAUSAL_SELF:
            return bounded_memory.mix(q, k, v, key_mask=key_mask)
        with without_autocast(q):
            p = at_least_single(q).softmax(dim=-1)
            channels = torch.eye(k.shape[3], dtype=p.dtype, device=k.device)  # their scores are the channels of k
            maps, _ = landmark_pool(channels.expand(*k.shape[:2], -1, -1), k, v, key_mask=key_mask)
            return (p @ maps).to(v.dtype)

    weights = HeadwiseAttention.weights_by_attending

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> ChannelSums:
        with without_autocast(k):
            k = at_least_single(k)
            k = k if key_mask is None else k.masked_fill(~key_mask[:, None, :, None], -torch.inf)
            return ChannelSums(*pool(k, at_least_single(v)))

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e"] | None,
        state: ChannelSums,
    ) -> tuple[Float[Tensor, "b h e"], ChannelSums]:
        if k is not None and v is not None:
            new = self.begin(k[:, :, None], v[:, :, None])
            state = ChannelSums(*merge(state.values, state.largest, new.values, new.largest))
        with without_autocast(q):
            p = at_least_single(q).softmax(dim=-1)
            return (p[:, :, None] @ mean(state.values))[:, :, 0].to(q.dtype), state
