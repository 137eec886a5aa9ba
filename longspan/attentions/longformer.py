"""Longformer: every token sees a window around it, and a few global tokens see, and are seen by, everything.

    y_i = sum_{j in A(i)} p_ij v_j      p_i = softmax_{j in A(i)}(q_i . k_j / sqrt(c))

    A(i) = {j : |i - j| <= window / 2} and all global tokens        for an ordinary query
    A(i) = everything                                               for a global one

over the real keys, and only those up to i when causal; a global token inside the window counts once. Global are the
first `global_tokens` real tokens of a row, such as the class token in front. With `projections` = "own" a global query
is q' = W'_q x and looks at k' = W'_k x, v' = W'_v x, maps of its own that start as copies of the ordinary ones; an
ordinary query always uses the ordinary k and v, also of global tokens. Paper: arXiv:2004.05150. Departs from the paper
in: global queries share the ordinary projections unless `projections` = "own" (a second set makes an encoder block a
quarter larger, against the rule that compared models have one size), no dilation, and the causal form may have
global tokens, whose queries then see their own past only.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, AttentionMeta, DecodeState, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels import ring
from longspan.kernels.block_sparse import block_sparse
from longspan.kernels.masked import masked_attention
from longspan.kernels.packing import left_align

BLOCK = 64  # queries that are computed together at least: a tile of the fused kernels


@dataclass
class Window(DecodeState):
    """The last keys and values in a ring, and those of the global tokens."""

    k: Float[Tensor, "b h s c"]
    v: Float[Tensor, "b h s e"]
    k_global: Float[Tensor, "b h t c"]
    v_global: Float[Tensor, "b h t e"]
    lengths: Int[Tensor, " b"]


class Longformer(HeadwiseAttention):
    meta = AttentionMeta(
        title="Longformer",
        paper="arXiv:2004.05150",
        family="sparse",
        cost="n",
        patterns=SELF_PATTERNS,
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
        places = self._first_real(q.shape[2], key_mask, q.device).expand(q.shape[0], -1)
        pattern = ("longformer", self.global_tokens)
        return self.attend_with(q, k, v, places, key_mask=key_mask, query_mask=query_mask, pattern=pattern)

    def attend_with(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m c"],
        places: Int[Tensor, "b t"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
        pattern: Hashable | None = None,
    ) -> Float[Tensor, "b h n e"]:
        """`attend` with global tokens at these places of each row, -1 for none; `pattern` names them if they are fixed
        for full rows, and then there are as many in each.

        With projections of their own q, k and v hold both sets in each head: ordinary channels, then global ones.
        """
        n, dropout = q.shape[2], self.dropout if self.training else 0.0
        (q, q_global), (k, k_global), (v, v_global) = self._both(q), self._both(k), self._both(v)
        block = max(self.reach, BLOCK)
        block = block if block < n else n  # min() would stay a formula in a graph compiled for any length
        y = block_sparse(
            *(q, k, v, (1, 0 if self.pattern.causal else 1)),
            block=block,
            reach=self.reach,
            causal=self.pattern.causal,
            columns=places[:, None],
            key_mask=key_mask,
            dropout=dropout,
            pattern=pattern,
        )
        if places.shape[1]:
            there = places.clamp(min=0)
            seen = self._seen_globally(there, n, key_mask) & (places >= 0)[..., None]
            rows = masked_attention(_take(q_global, there), k_global, v_global, seen[:, None], dropout=dropout)
            index = repeat(places.where(places >= 0, n), "b t -> b h t e", h=y.shape[1], e=y.shape[3])
            if pattern is not None and key_mask is None:
                y = y.scatter(2, index, rows.to(y.dtype))
            else:  # a place of -1 is written to a row after the last, which is cut off again
                y = F.pad(y, (0, 0, 0, 1)).scatter(2, index, rows.to(y.dtype))[:, :, :n]
        return y if query_mask is None else y.masked_fill(~query_mask[:, None, :, None], 0)

    def weights(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b h n m"]:
        n = q.shape[2]
        (q, q_global), (k, k_global) = self._both(q), self._both(k)
        i, j = torch.arange(n, device=q.device)[:, None], torch.arange(n, device=q.device)
        places = self._first_real(n, key_mask, q.device)
        is_global = (places[:, :, None] == j).any(dim=1)
        everything = self._seen_globally(j[None], n, key_mask)
        ordinary = everything & (((i - j).abs() <= self.reach) | is_global[:, None, :])
        hidden = ~torch.where(is_global[..., None], everything, ordinary)[:, None]
        scores = torch.where(is_global[:, None, :, None], q_global @ k_global.mT, q @ k.mT) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(hidden, -torch.inf)
        p = torch.softmax(scores, dim=-1, dtype=torch.promote_types(q.dtype, torch.float32))
        return p.masked_fill(hidden, 0).to(q.dtype)

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m c"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Window:
        keys, lengths = left_align(rearrange(k, "b h m c -> b m h c"), key_mask)
        values, _ = left_align(rearrange(v, "b h m e -> b m h e"), key_mask)
        slots, first = self.reach + 1, max(0, self.global_tokens - keys.shape[1])
        k_global, v_global = (
            rearrange(F.pad(u, (0, 0, 0, 0, 0, first))[:, : self.global_tokens], "b t h c -> b h t c")
            for u in (keys, values)
        )
        return Window(ring.fill(keys, lengths, slots), ring.fill(values, lengths, slots), k_global, v_global, lengths)

    def advance(
        self, q: Float[Tensor, "b h c"], k: Float[Tensor, "b h c"], v: Float[Tensor, "b h c"], state: Window
    ) -> tuple[Float[Tensor, "b h e"], Window]:
        t, index = state.lengths, torch.arange(self.global_tokens, device=q.device)
        here = (index == t[:, None])[:, None, :, None]
        state = Window(
            ring.put(state.k, k, t),
            ring.put(state.v, v, t),
            torch.where(here, k[:, :, None], state.k_global),
            torch.where(here, v[:, :, None], state.v_global),
            t + 1,
        )
        near = ring.places(t, self.reach + 1) >= self.global_tokens  # a global token is not seen as a near one as well
        far = index <= t[:, None]
        (q, q_global), (keys, keys_global) = self._both(q[:, :, None]), self._both(state.k_global)
        values, values_global = self._both(state.v_global)
        keys = torch.cat([self._both(state.k)[0], keys], dim=2)
        values = torch.cat([self._both(state.v)[0], values], dim=2)
        y = masked_attention(q, keys, values, torch.cat([near, far], dim=-1)[:, None, None])
        if self.own and self.global_tokens:  # all that a global query may see are global tokens before it
            rows = masked_attention(q_global, keys_global, values_global, far[:, None, None])
            y = torch.where((t < self.global_tokens)[:, None, None, None], rows, y)
        return y[:, :, 0], state

    def projections(self) -> Iterator[nn.Linear]:
        return (module for module in self.modules() if isinstance(module, nn.Linear))

    def _both(self, u: Float[Tensor, "b h n c"]) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h n e"]]:
        """What ordinary and what global queries use."""
        if not self.own:
            return u, u
        ordinary, globally = u.chunk(2, dim=-1)
        return ordinary, globally

    def _first_real(self, n: int, mask: Bool[Tensor, "b n"] | None, device: torch.device) -> Int[Tensor, "_b t"]:
        """The places of the global tokens, -1 where a row has too few."""
        place, first = torch.arange(n, device=device), self.global_tokens if self.global_tokens < n else n
        if mask is None:
            return place[None, :first]
        places = torch.where(mask, place, n).topk(first, dim=1, largest=False).values
        return places.where(places < n, -1)

    def _seen_globally(
        self, there: Int[Tensor, "_b t"], n: int, key_mask: Bool[Tensor, "b n"] | None
    ) -> Bool[Tensor, "_b t n"]:
        """Which keys a global query at these places sees."""
        j = torch.arange(n, device=there.device)
        seen = j <= there[..., None] if self.pattern.causal else (j >= 0).expand(*there.shape, n)
        return seen if key_mask is None else seen & key_mask[:, None, :]


class Pair(nn.Linear):
    """A linear map and a second one that begins as its copy, side by side in every head."""

    def __init__(self, inputs: int, outputs: int, heads: int, bias: bool):
        super().__init__(inputs, outputs, bias=bias)
        self.heads, self.globally = heads, nn.Linear(inputs, outputs, bias=bias)
        self.globally.load_state_dict(self.state_dict(), strict=False)

    def forward(self, x: Float[Tensor, "*tokens d"]) -> Float[Tensor, "*tokens twice"]:
        both = [u.unflatten(-1, (self.heads, -1)) for u in (super().forward(x), self.globally(x))]
        return torch.cat(both, dim=-1).flatten(-2)


def _take(x: Float[Tensor, "b h n c"], places: Int[Tensor, "_b t"]) -> Float[Tensor, "b h t c"]:
    b, h, _, c = x.shape
    return x.gather(2, repeat(places.expand(b, -1), "b t -> b h t c", h=h, c=c))
