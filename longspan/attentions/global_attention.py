"""Global attention of Luong, Pham and Manning: every query looks at every key, by one of three scores.

    y_i = sum_j p_ij v_j      p_i = softmax_j(score(q_i, k_j))

    score = "dot"       q . k, without the 1 / sqrt(c) of softmax attention
    score = "general"   q . W k, one W for each head, the identity at the start
    score = "concat"    u . tanh(A q + B k), one u, A and B for each head

over the real keys j (and j <= i when causal). A row with nothing to see outputs 0. Compared with softmax attention
"general" has d c more parameters and "concat" 2 d c + d more. Scores by concatenation are computed for a few queries at
a time and recomputed in the backward pass, so n x m x c numbers are never stored.

Paper: arXiv:1508.04025. Departs from the paper in: values are projected like keys, where the paper has v = k; the
attentional state tanh(W [y_i, x_i]) is left to the network, which adds x itself; the score by location, which ignores
the keys and has a weight for each position of the longest context, is left out. The paper uses it as cross attention in
a decoder, where all keys are seen; in self attention it is the same with keys from the sequence itself.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, MaskedAttention, Pattern
from longspan.attentions.states import KeyValueCache
from longspan.kernels.masked import attend_once, masked_attention, masked_weights
from longspan.kernels.precision import at_least_single, without_autocast

QUERIES = 64  # whose scores by concatenation are in memory at once


class GlobalAttention(MaskedAttention):
    meta = AttentionMeta(
        title="Global",
        paper="arXiv:1508.04025",
        family="exact",
        cost="n^2",
        patterns=ALL_PATTERNS,
        rowwise=True,
        dropout="weights",
        remark="CAB's table calls it linear, which one query is; all of them together are quadratic.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        score: Literal["dot", "general", "concat"] = "dot",
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        self.score, c = score, self.head_dim
        if score == "general":
            self.between = nn.Parameter(torch.eye(c).repeat(heads, 1, 1))
        if score == "concat":
            self.of_query, self.of_key = (nn.Parameter(_xavier(heads, c, c)) for _ in range(2))
            self.reading = nn.Parameter(_xavier(heads, c, 1)[..., 0])

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        if self.score == "concat":
            return self._concatenated(q, k, v, self.visible_pairs(q, k, key_mask))
        q, causal = self._asked(q), self.pattern is Pattern.CAUSAL_SELF
        if key_mask is None:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=self.active_dropout, is_causal=causal, scale=1.0)
        return masked_attention(q, k, v, self.visible_pairs(q, k, key_mask), dropout=self.active_dropout, scale=1.0)

    def weights(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n m"]:
        visible = self.visible_pairs(q, k, key_mask)
        if self.score == "concat":
            return self._shares(q, k, visible).to(q.dtype)
        return masked_weights(self._asked(q), k, visible, scale=1.0)

    def visible(
        self, i: Int[Tensor, "_b n"], j: Int[Tensor, " m"], key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Bool[Tensor, "_b 1 n m"]:
        i = i[:, None, :, None]
        return j <= i if self.pattern is Pattern.CAUSAL_SELF else (j >= 0).expand(*i.shape[:3], -1)

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e"] | None,
        state: KeyValueCache,
    ) -> tuple[Float[Tensor, "b h e"], KeyValueCache]:
        state = state if k is None or v is None else state.plus(k, v)
        real = torch.arange(state.k.shape[2], device=q.device) < state.lengths[:, None, None]
        if self.score != "concat":
            return attend_once(self._asked(q[:, :, None])[:, :, 0], state.k, state.v, real, scale=1.0), state
        return self._rows(q[:, :, None], state.k, state.v, real[:, :, None])[:, :, 0].to(q.dtype), state

    def _asked(self, q: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h n c"]:
        """Queries whose dot products with the keys are the scores."""
        return q @ self.between.to(q.dtype) if self.score == "general" else q

    def _concatenated(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        visible: Bool[Tensor, "_b 1 n m"],
    ) -> Float[Tensor, "b h n e"]:
        parts = zip(q.split(QUERIES, dim=2), visible.split(QUERIES, dim=2), strict=True)
        rows: Any = [checkpoint(self._rows, part, k, v, seen, use_reentrant=False) for part, seen in parts]
        return torch.cat(rows, dim=2).to(q.dtype)

    def _rows(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        visible: Bool[Tensor, "_b 1 n m"],
    ) -> Float[Tensor, "b h n e"]:
        with without_autocast(q):
            return F.dropout(self._shares(q, k, visible), self.active_dropout) @ at_least_single(v)

    def _shares(
        self, q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h m c"], visible: Bool[Tensor, "_b 1 n m"]
    ) -> Float[Tensor, "b h n m"]:
        """The weights by concatenation; tanh in half precision would lose three digits."""
        with without_autocast(q):
            q, k = at_least_single(q), at_least_single(k)
            asked, offered = q @ self.of_query.to(q.dtype), k @ self.of_key.to(k.dtype)
            hidden = torch.tanh(asked[:, :, :, None] + offered[:, :, None])
            scores = einsum(hidden, self.reading.to(q.dtype), "b h n m c, h c -> b h n m")
            # the second fill turns the NaN of a row that sees nothing into 0
            return torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1).masked_fill(~visible, 0)


def _xavier(heads: int, rows: int, columns: int) -> Float[Tensor, "h rows columns"]:
    bound = (6 / (rows + columns)) ** 0.5
    return torch.empty(heads, rows, columns).uniform_(-bound, bound)
