"""cosFormer: linear attention with rectified queries and keys, whose weights fall off as the cosine of the distance.

    y_i = sum_j w_ij v_j / max(sum_j w_ij, eps)      w_ij = relu(q_i) . relu(k_j) cos(pi (i - j) / 2L)

over the real keys j, in causal self attention over j <= i. The cosine of a difference is a product of two features,

    phi(u)_p = [relu(u) cos(pi p / 2L), relu(u) sin(pi p / 2L)]      w_ij = phi(q_i)_i . phi(k_j)_j

so keys and values are summed once. Positions count real tokens only, and in cross attention queries and keys are
counted separately. L is the longest length given at construction: max_length, in cross attention the larger of
max_length and max_context. No distance may reach it, or weights would turn negative.

Scores are not scaled by the width, and a query without any positive channel outputs 0. Paper: arXiv:2202.08791. Departs
from the paper in: there L is the length of the current sequence, so each new token would change the weights of all
earlier ones; and padding is honoured.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import DecodeState
from longspan.core.errors import UsageError
from longspan.kernels.linear_attention import final_state, linear_attention, linear_attention_step


@dataclass
class Sums(DecodeState):
    """The sum of phi(k) v^T with that of phi(k) as its last column, and how many queries each row has had so far."""

    memory: Float[Tensor, "b h two_c e_plus_1"]
    queries: Int[Tensor, " b"]
    at_most: int = 0  # upper bound of `queries`, known without a device sync


class CosFormer(HeadwiseAttention):
    meta = AttentionMeta(
        title="cosFormer",
        paper="arXiv:2202.08791",
        family="kernel",
        cost="n",
        patterns=ALL_PATTERNS,
        length_bound=True,
        remark="CAB's table denies both causal patterns, which a length that grows breaks; with a fixed one both hold.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, eps: float = 1e-6, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if eps <= 0:
            raise UsageError(f"cosformer divides by at least eps, got eps={eps}; choose a positive number.")
        self.eps = eps
        needed = {"max_length": self.max_length} | ({"max_context": self.max_context} if self.pattern.cross else {})
        if missing := [name for name, value in needed.items() if value is None]:
            raise UsageError(f"cosformer measures distance by the longest length; name it: {' and '.join(missing)}.")
        self.longest = max(value for value in needed.values() if value is not None)

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        keys = self._angles(k, key_mask)
        queries = self._angles(q, query_mask) if self.pattern.cross else keys
        how = {"key_mask": key_mask, "angles": (queries, keys), "floor": self.eps}
        return linear_attention(q, k, v, feature="cosine", causal=self.pattern is Pattern.CAUSAL_SELF, **how)

    weights = HeadwiseAttention.weights_by_attending

    def prefill(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], DecodeState]:
        y, state = super().prefill(x, context, mask=mask, context_mask=context_mask)
        assert isinstance(state, Sums)  # `begin` sees only keys and cannot count queries
        queries = torch.full_like(state.queries, x.shape[1]) if mask is None else mask.sum(dim=1)
        return y, replace(state, queries=queries, at_most=x.shape[1])

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Sums:
        memory = final_state(k, v, feature="cosine", key_mask=key_mask, angles=self._angles(k, key_mask))
        return Sums(memory, torch.zeros(k.shape[0], dtype=torch.long, device=k.device))

    def advance(
        self, q: Float[Tensor, "b h c"], k: Float[Tensor, "b h c"] | None, v: Float[Tensor, "b h e"] | None, state: Sums
    ) -> tuple[Float[Tensor, "b h e"], Sums]:
        at_most = state.at_most + 1
        if at_most > self.longest:
            at_most = int(state.queries.max()) + 1
            self._fits(at_most)
        angle = self._angle(state.queries, q)
        angles = (angle, angle)
        y, memory = linear_attention_step(q, k, v, state.memory, feature="cosine", angles=angles, floor=self.eps)
        return y, Sums(memory, state.queries + 1, at_most)

    def _fits(self, tokens: int) -> None:
        if tokens > self.longest:
            at_most = f"at most {self.longest} tokens, got {tokens}"
            raise UsageError(f"This cosformer was built for {at_most}; build it for more or cut the input.")

    def _angles(self, x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b n"]:
        """The angle of each token, by its position among the real tokens of its row, from 0."""
        self._fits(x.shape[2])
        place = torch.arange(x.shape[2], device=x.device).expand(len(x), -1) if mask is None else mask.cumsum(dim=1) - 1
        return self._angle(place, x)

    def _angle(self, place: Int[Tensor, " b *n"], x: Tensor) -> Float[Tensor, " b *n"]:
        return place.to(torch.promote_types(x.dtype, torch.float32)) * (torch.pi / 2) / self.longest
