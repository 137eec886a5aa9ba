"""Induced set attention of the Set Transformer: a few learned queries pool all tokens, which attend to the pools.

    P_f = sum_j softmax_j(I_f . k_j / sqrt(c)) v_j      y_i = sum_f softmax_f(q_i . (A P_f) / sqrt(c)) B P_f

over the real keys j, for `points` inducing points I; A and B [c, c] make keys and values of the pools, head by head. In
causal self attention each position has the pools of its own prefix, so the last row equals that of the non-causal form.
Decoding keeps the sums of the pools.

It has points dim + 2 dim^2 / heads more parameters than softmax attention. Paper: arXiv:1810.00825. Departs from the
paper in: this is the attention alone. Residuals, feed-forward layers and norms around both steps belong to a backbone
(`authors_set_transformer` has them as released, and without them a causal form costs no more than this), A and B act
within heads, logits are divided by the square root of the head width, not of the layer width, and I is learned directly
in place of its projection, standard normal at the start. The causal form is not in the paper.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import DecodeState
from longspan.core.errors import UsageError
from longspan.kernels import bounded_memory
from longspan.kernels.bounded_memory import mean, merge, pool
from longspan.kernels.landmark import landmark_attend, landmark_pool
from longspan.kernels.precision import at_least_single, bfloat16_or_single, without_autocast


@dataclass
class Pools(DecodeState):
    """Weighted sums of values, the sum of weights as last column, relative to the pool's largest logit so far."""

    values: Float[Tensor, "b h r e_plus_1"]
    largest: Float[Tensor, "b h r 1"]


class SetTransformer(HeadwiseAttention):
    meta = AttentionMeta(
        title="Set Transformer",
        paper="arXiv:1810.00825",
        family="landmark",
        cost="n",
        rowwise=True,
        patterns=ALL_PATTERNS,
        remark="CAB's table denies causal self attention; pools of each prefix give it.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, points: int = 32, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if points < 1:
            raise UsageError(f"set_transformer needs at least one inducing point, got points={points}.")
        self.inducing = nn.Parameter(torch.empty(points, self.inner))
        self.key_map, self.value_map = (nn.Parameter(torch.empty(heads, self.head_dim, self.head_dim)) for _ in "AB")
        nn.init.normal_(self.inducing)  # as large as projected tokens, as small points would make all pools start alike
        for maps in (self.key_map, self.value_map):
            nn.init.uniform_(maps, -((3 / self.head_dim) ** 0.5), (3 / self.head_dim) ** 0.5)  # Xavier, per head

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m c"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n c"]:
        with without_autocast(q):
            points = self._points(k)
            if self.pattern is Pattern.CAUSAL_SELF:
                dtype, (q, k, v) = v.dtype, map(bfloat16_or_single, (q, k, v))
                y = bounded_memory.attend_values(q @ self.key_map.to(q.dtype), k, v, points.mT, key_mask=key_mask)
                return (y @ self.value_map.to(y.dtype).mT).to(dtype)
            pools, _ = landmark_pool(points.expand(len(k), -1, -1, -1), k, v, key_mask=key_mask)
            keys, values = (pools @ maps.to(pools.dtype).mT for maps in (self.key_map, self.value_map))
            return landmark_attend(q, keys * self.head_dim**-0.5, values).to(v.dtype)

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m c"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Pools:
        with without_autocast(k):
            return Pools(*pool(self._logits(k, key_mask), at_least_single(v)))

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h c"] | None,
        state: Pools,
    ) -> tuple[Float[Tensor, "b h c"], Pools]:
        if k is not None and v is not None:
            new = self.begin(k[:, :, None], v[:, :, None])
            state = Pools(*merge(state.values, state.largest, new.values, new.largest))
        with without_autocast(q):
            pools = mean(state.values)
            keys, values = (pools @ maps.to(pools.dtype).mT for maps in (self.key_map, self.value_map))
            y = F.scaled_dot_product_attention(q[:, :, None].to(keys.dtype), keys, values)
        return y[:, :, 0].to(q.dtype), state

    def _points(self, k: Float[Tensor, "b h m c"]) -> Float[Tensor, "h r c"]:
        """The inducing points of each head, scaled."""
        points = self.inducing.to(at_least_single(k).dtype).unflatten(1, (self.heads, -1)).transpose(0, 1)
        return points * self.head_dim**-0.5

    def _logits(self, k: Float[Tensor, "b h m c"], key_mask: Bool[Tensor, "b m"] | None) -> Float[Tensor, "b h m r"]:
        a = at_least_single(k) @ self._points(k).mT
        return a if key_mask is None else a.masked_fill(~key_mask[:, None, :, None], -torch.inf)
