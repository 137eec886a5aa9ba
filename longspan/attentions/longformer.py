"""Longformer: every token sees a window around it, and a few global tokens see, and are seen by, everything.

    y_i = sum_{j in A(i)} p_ij v_j      p_i = softmax_{j in A(i)}(q_i . k_j / sqrt(c))

    A(i) = {j : |i - j| <= window / 2} and all global tokens        for an ordinary query
    A(i) = everything                                               for a global one

over the real keys, and only those up to i when causal; a global token inside the window counts once. The first
`global_tokens` real tokens of a row are global, such as a leading class token. With `projections` = "own" a global
query is q' = W'_q x and attends to k' = W'_k x, v' = W'_v x, separate projections that start as copies of the ordinary
ones; an ordinary query always uses the ordinary k and v, even those of global tokens. Paper: arXiv:2004.05150. Departs
from the paper in: global queries share the ordinary projections unless `projections` = "own" (a second set makes an
encoder block a quarter larger, against the rule that compared models have the same size), no dilation, and the causal
form may have global tokens, whose queries then see only their own past.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import KeyValueCache, KeyValueRing
from longspan.core.errors import UsageError
from longspan.kernels.block_sparse import block_sparse, with_global_queries
from longspan.kernels.masked import masked_attention, masked_weights

BLOCK = 64  # least number of queries computed together: a tile of the fused kernels


@dataclass
class Window(KeyValueRing):
    """The last keys and values, and those of the global tokens."""

    k_global: Float[Tensor, "b h t c"]
    v_global: Float[Tensor, "b h t e"]


class Longformer(HeadwiseAttention):
    meta = AttentionMeta(
        title="Longformer",
        paper="arXiv:2004.05150",
        family="sparse",
        cost="n",
        patterns=SELF_PATTERNS,
        places="distances",
        dropout="weights",
        limit="window=8192",
        remark="`window` counts both sides, as Hugging Face does; LRA ran it without a single global token.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        window: int = 512,
        global_tokens: int = 1,
        projections: Literal["shared", "own"] = "shared",
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if window < 2 or window % 2:
            raise UsageError(f"longformer needs a window of two equal halves, an even number, got window={window}.")
        if global_tokens < 0:
            raise UsageError(f"longformer cannot have fewer than no global tokens, got global_tokens={global_tokens}.")
        self.reach, self.global_tokens, self.own = window // 2, global_tokens, projections == "own"
        if self.own:
            bias = self.query.bias is not None
            self.query, self.key, self.value = (Pair(dim, self.inner, heads, bias) for _ in range(3))

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m c"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        n, causal = q.shape[2], self.pattern.causal
        (q, q_global), (k, k_global), (v, v_global) = self._both(q), self._both(k), self._both(v)
        block = max(self.reach, BLOCK)
        block = block if block < n else n  # min() would stay symbolic in a graph for dynamic lengths
        rules = {"causal": causal, "key_mask": key_mask, "dropout": self.active_dropout}
        positions = self.global_positions(n, key_mask, q.device)
        places = {"global_keys": positions[:, None], "cache_key": ("longformer", self.global_tokens)}
        y = block_sparse(q, k, v, (1, 0 if causal else 1), block=block, reach=self.reach, **places, **rules)
        if positions.shape[1]:
            ends = (positions.shape[1], 0) if key_mask is None else None
            y = with_global_queries(y, q_global, k_global, v_global, positions, **rules, ends=ends)
        return y if query_mask is None else y.masked_fill(~query_mask[:, None, :, None], 0)

    def weights(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n m"]:
        n = q.shape[2]
        (q, q_global), (k, k_global) = self._both(q), self._both(k)
        i, j = torch.arange(n, device=q.device)[:, None], torch.arange(n, device=q.device)
        is_global = (self.global_positions(n, key_mask, q.device)[:, :, None] == j).any(dim=1)[:, None]  # [b 1 n]
        everything = (j <= i if self.pattern.causal else (j >= 0).expand(n, n))[None, None]
        everything = everything if key_mask is None else everything & key_mask[:, None, None, :]
        ordinary = everything & (((i - j).abs() <= self.reach) | is_global[:, :, None, :])
        globally = masked_weights(q_global, k_global, everything)
        return torch.where(is_global[..., None], globally, masked_weights(q, k, ordinary))

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m c"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Window:
        near, whole = KeyValueRing.of(k, v, key_mask, slots=self.reach + 1), KeyValueCache.of(k, v, key_mask)
        missing = max(0, self.global_tokens - k.shape[2])
        k_global, v_global = (F.pad(u[:, :, : self.global_tokens], (0, 0, 0, missing)) for u in (whole.k, whole.v))
        return Window(near.k, near.v, near.lengths, k_global, v_global)

    def advance(
        self, q: Float[Tensor, "b h c"], k: Float[Tensor, "b h c"], v: Float[Tensor, "b h c"], state: Window
    ) -> tuple[Float[Tensor, "b h e"], Window]:
        t, index = state.lengths, torch.arange(self.global_tokens, device=q.device)
        here = (index == t[:, None])[:, None, :, None]
        k_global = torch.where(here, k[:, :, None], state.k_global)
        v_global = torch.where(here, v[:, :, None], state.v_global)
        state = state.plus(k, v, k_global=k_global, v_global=v_global)
        near = state.positions >= self.global_tokens  # a global token is not seen twice
        far = index <= t[:, None]
        (q, q_global), (keys, keys_global) = self._both(q[:, :, None]), self._both(k_global)
        values, values_global = self._both(v_global)
        keys = torch.cat([self._both(state.k)[0], keys], dim=2)
        values = torch.cat([self._both(state.v)[0], values], dim=2)
        y = masked_attention(q, keys, values, torch.cat([near, far], dim=-1)[:, None, None])
        if self.own and self.global_tokens:  # a causal global query sees only earlier global tokens
            rows = masked_attention(q_global, keys_global, values_global, far[:, None, None])
            y = torch.where((t < self.global_tokens)[:, None, None, None], rows, y)
        return y[:, :, 0], state

    def projections(self) -> Iterator[nn.Linear]:
        return (module for module in self.modules() if isinstance(module, nn.Linear))

    def _both(self, u: Float[Tensor, "b h n c"]) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h n e"]]:
        """The projections that ordinary queries use, and those that global queries use."""
        if not self.own:
            return u, u
        ordinary, globally = u.chunk(2, dim=-1)
        return ordinary, globally

    def global_positions(self, n: int, mask: Bool[Tensor, "b n"] | None, device: torch.device) -> Int[Tensor, "_b t"]:
        """The positions of the global tokens of each row, -1 for none; a single row when nothing is padded."""
        first = self.global_tokens if self.global_tokens < n else n
        j = torch.arange(n, device=device)
        if mask is None:
            return j[None, :first]
        positions = torch.where(mask, j, n).topk(first, dim=1, largest=False).values
        return positions.where(positions < n, -1)


class Pair(nn.Linear):
    """A linear projection and a second one that starts as its copy, side by side in every head."""

    def __init__(self, inputs: int, outputs: int, heads: int, bias: bool):
        super().__init__(inputs, outputs, bias=bias)
        self.heads, self.globally = heads, nn.Linear(inputs, outputs, bias=bias)
        self.globally.load_state_dict(self.state_dict(), strict=False)

    def forward(self, x: Float[Tensor, "*tokens d"]) -> Float[Tensor, "*tokens twice"]:
        both = [u.unflatten(-1, (self.heads, -1)) for u in (super().forward(x), self.globally(x))]
        return torch.cat(both, dim=-1).flatten(-2)
