"""XCiT, cross-covariance attention: channels attend to channels, by their covariance over all tokens.

    y_i = A v_i      A_ab = softmax_b(temperature q^_a . k^_b)      q^_a = q_a / |q_a|      k^_b = k_b / |k_b|

where q_a is channel a of all real tokens, a vector as long as the sequence, and `temperature` is learned, one for each
head, 1 at the start. A is c by c whatever the length, so the cost is linear. In causal self attention A_t is that of
the tokens up to t, so the last row equals that of the non-causal form; decoding keeps the covariance and the norms.

Tokens see one another only through these statistics: the paper's block has a local convolution and class attention
beside it, which belong to a backbone. Queries and keys must be the same tokens, so there is no cross attention. It has
one more parameter per head than softmax attention. Paper: arXiv:2106.09681. Departs from the paper in: padding is
honoured, and the causal form is not in the paper.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import DecodeState
from longspan.kernels.landmark.pieces import weighted_sums
from longspan.kernels.precision import at_least_single, bfloat16_or_single, without_autocast
from longspan.kernels.running_covariance import channel_weights, running_covariance


@dataclass
class Covariance(DecodeState):
    """Sums over the tokens so far."""

    covariance: Float[Tensor, "b h c c"]  # sum of q k^T
    square_q: Float[Tensor, "b h c"]
    square_k: Float[Tensor, "b h c"]


class XCiT(HeadwiseAttention):
    meta = AttentionMeta(
        title="XCiT",
        paper="arXiv:2106.09681",
        family="channels",
        cost="n",
        patterns=SELF_PATTERNS,
        remark="CAB's table denies causal self attention; the covariance of each prefix gives it.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.temperature.optim = {"weight_decay": 0.0}  # pyright: ignore[reportAttributeAccessIssue]

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h n c"],
        v: Float[Tensor, "b h n c"],
        *,
        key_mask: Bool[Tensor, "b n"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n c"]:
        given = v.dtype
        with without_autocast(q):
            if self.pattern is Pattern.CAUSAL_SELF:
                return self._attend_causally(q, k, v, key_mask)[0]
            q, k, v = (_without_padding(bfloat16_or_single(x), key_mask) for x in (q, k, v))
            dtype = torch.promote_types(q.dtype, torch.float32)
            square_q, square_k = (torch.linalg.vector_norm(x, dim=2, dtype=dtype).square() for x in (q, k))
            covariance = weighted_sums(q, k, dtype=dtype)
            weights = channel_weights(covariance, square_q, square_k, self.temperature.to(dtype))
            return (v @ weights.mT.to(v.dtype)).to(given)

    def prefill(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], Covariance]:
        self._needs_decoding()
        self._source(x, context, mask, context_mask)
        q, k, v = (self._split(project(x)) for project in (self.query, self.key, self.value))
        with without_autocast(q):
            y, state = self._attend_causally(q, k, v, mask)
        return (self._merge(y) if x.shape[1] else x), state

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h c"] | None,
        state: Covariance,
    ) -> tuple[Float[Tensor, "b h c"], Covariance]:
        assert k is not None
        assert v is not None
        with without_autocast(q):
            y, state = self._attend_causally(q[:, :, None], k[:, :, None], v[:, :, None], None, state)
        return y[:, :, 0], state

    def _attend_causally(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h n c"],
        v: Float[Tensor, "b h n c"],
        mask: Bool[Tensor, "b n"] | None,
        state: Covariance | None = None,
    ) -> tuple[Float[Tensor, "b h n c"], Covariance]:
        sums = None if state is None else (state.covariance, state.square_q, state.square_k)
        dtype = v.dtype
        q, k, v = (_without_padding(at_least_single(x), mask) for x in (q, k, v))
        y, sums = running_covariance(q, k, v, self.temperature.to(q.dtype), sums)
        return y.to(dtype), Covariance(*sums)


def _without_padding(x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b h n c"]:
    """x, with padding set to 0 so that it adds nothing."""
    return x if mask is None else x.masked_fill(~mask[:, None, :, None], 0)
