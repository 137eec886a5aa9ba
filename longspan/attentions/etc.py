"""ETC: every token sees a window around it and a fixed number of global tokens, and these see everything.

    y_i = sum_{j in A(i)} p_ij v_j      p_i = softmax_{j in A(i)}((q_i . (k_j + a_l(i,j)) + b_l(i,j)) / sqrt(c))

    A(i) = {j : |i - j| <= radius} and all global tokens        for an ordinary query
    A(i) = everything                                           for a global one

over the real keys, and only those up to i when causal. The label l(i, j) is the distance between two ordinary tokens,
or between two global ones counted among themselves, clipped at `max_distance` on either side, and otherwise a label for
a pair of a global and an ordinary token. Ordinary and global queries have tables a [labels h c] and b [labels h] of
their own, over all heads 2 (2 max_distance + 2) (d + h) parameters on top of those of softmax attention; with
`max_distance` = 0 there are none. The tokens 0, s, 2 s ... are global, at most `global_tokens` of them, with s =
`stride`; without a stride s is the maximum length divided by their number, rounded up, or 64 when no length is given.
So a token in front, such as a class token, is global, and the cost is linear in the length, not quadratic as with one
global token per segment. Causally a global token summarises all tokens before it, and later ones read that: the global
stream stays causal through all layers.

Paper: arXiv:2004.08483. Departs from the paper in: global tokens are tokens of the row, as the paper does not cover
rows without structure, so both streams share all projections (with `stride` = 1 the first tokens are global, as in the
paper's inputs); no structural labels; global tokens may be padding, and are then not seen; a causal form, since ETC is
an encoder. There is no cross form: windows need one order of tokens, and reading through global tokens alone would be
another mechanism.
"""

import math
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import KeyValueCache
from longspan.core.errors import UsageError
from longspan.kernels.block_sparse.labels import label_of, labelled_global_queries, labelled_window
from longspan.kernels.packing import fill_up, real
from longspan.kernels.precision import at_least_single, without_autocast

STRIDE = 64  # when no maximum length is given


class ETC(HeadwiseAttention):
    meta = AttentionMeta(
        title="ETC",
        paper="arXiv:2004.08483",
        family="sparse",
        cost="n",
        patterns=SELF_PATTERNS,
        length_bound=True,
        positions=True,
        places="positions",
        dropout="weights",
        limit="radius=4096, max_distance=0",
        remark="Linear at a fixed number of global tokens; CAB grants it causal self attention, the paper has none.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        radius: int = 84,
        global_tokens: int = 64,
        stride: int | None = None,
        max_distance: int = 12,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if min(radius, global_tokens, max_distance) < 0 or (stride is not None and stride < 1):
            raise UsageError(
                "etc needs radius, global_tokens and max_distance of at least 0 and a stride of at least 1, got "
                f"{radius}, {global_tokens}, {max_distance} and {stride}."
            )
        if stride is None:
            stride = STRIDE if self.max_length is None else -(-self.max_length // max(global_tokens, 1))
        self.radius, self.stride, self.global_tokens, self.max_distance = radius, stride, global_tokens, max_distance
        if max_distance:
            labels = 2 * max_distance + 2
            self.a, self.a_global = (nn.Parameter(truncated(labels, heads, self.head_dim)) for _ in range(2))
            self.b, self.b_global = (nn.Parameter(torch.zeros(labels, heads)) for _ in range(2))

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        causal, chosen = self.pattern.causal, slice(0, self._reach(q.shape[2]), self.stride)
        rules = {"global_tokens": chosen, "causal": causal, "key_mask": key_mask, "dropout": self.active_dropout}
        terms = self._terms(q, self.a, self.b) if self.max_distance else None
        sides = {"left": self.radius, "right": 0 if causal else self.radius}
        cache_key = ("etc", self.stride, self.global_tokens)
        y = labelled_window(q, k, v, terms, **sides, **rules, cache_key=cache_key)
        if chosen.stop:
            few = q[:, :, chosen].contiguous()
            terms = self._terms(at_least_single(few), self.a_global, self.b_global) if self.max_distance else None
            rows = labelled_global_queries(few, k, v, terms, **rules)
            y = self._with_global(y.to(v.dtype), rows.to(v.dtype))
        return y if query_mask is None else y.masked_fill(~query_mask[:, None, :, None], 0)

    def weights(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n m"]:
        mask = q.new_ones(len(q), k.shape[2], dtype=torch.bool) if key_mask is None else key_mask
        return self._dense(q, k, torch.arange(q.shape[2], device=q.device)[None], mask).to(q.dtype)

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> KeyValueCache:
        return KeyValueCache.of(k, v, key_mask)  # a full cache: a global token sees everything

    def advance(
        self, q: Float[Tensor, "b h c"], k: Float[Tensor, "b h c"], v: Float[Tensor, "b h e"], state: KeyValueCache
    ) -> tuple[Float[Tensor, "b h e"], KeyValueCache]:
        t, state = state.lengths, state.plus(k, v)
        p = self._dense(q[:, :, None], state.k, t[:, None], real(state.lengths, state.k.shape[2]))
        return (p.to(state.v.dtype) @ state.v)[:, :, 0], state

    def _dense(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        i: Int[Tensor, "_b n"],
        mask: Bool[Tensor, "b m"],
    ) -> Float[Tensor, "b h n m"]:
        """The weights of queries at positions i over all keys."""
        i, j = i[..., None], torch.arange(k.shape[2], device=k.device)
        asks, answers = self._is_global(i), self._is_global(j)
        visible = asks | answers | ((i - j).abs() <= self.radius)
        visible = (visible & (j <= i) if self.pattern.causal else visible) & mask[:, None]
        with without_autocast(q):
            q, k = at_least_single(q), at_least_single(k)
            scores = q @ k.mT / q.shape[-1] ** 0.5
            if self.max_distance:
                label = label_of(torch.where(asks, (j - i) // self.stride, j - i), self.max_distance)
                label = torch.where(asks == answers, label, 2 * self.max_distance + 1)
                terms = [self._terms(q, a, b) for a, b in ((self.a, self.b), (self.a_global, self.b_global))]
                index = label[:, None].expand(*scores.shape)
                scores = scores + torch.where(asks[:, None], terms[1], terms[0]).gather(-1, index)
            scores = scores.masked_fill(~visible[:, None], torch.finfo(q.dtype).min)
            return scores.softmax(dim=-1).masked_fill(~visible[:, None], 0)

    def _with_global(self, y: Float[Tensor, "b h n e"], rows: Float[Tensor, "b h g e"]) -> Float[Tensor, "b h n e"]:
        """y with these rows as its global tokens, by `cat`, since torch 2.11 does not compile an `index_copy`."""
        n, end = y.shape[2], self.global_tokens * self.stride
        first = y[:, :, :end] if end < n else fill_up(y, rows.shape[2] * self.stride)
        segments = first.unflatten(2, (-1, self.stride))
        segments = torch.cat([rows[:, :, :, None], segments[:, :, :, 1:]], dim=3).flatten(2, 3)
        return torch.cat([segments, y[:, :, end:]], dim=2) if end < n else segments[:, :, :n]

    def _terms(
        self, q: Float[Tensor, "b h n c"], a: Float[Tensor, "l h c"], b: Float[Tensor, "l h"]
    ) -> Float[Tensor, "b h n l"]:
        """(q . a + b) / sqrt(c) for every label."""
        with without_autocast(q):
            a, b = ((u / q.shape[-1] ** 0.5).to(q.dtype) for u in (a, b))
            return einsum(q, a, "b h n c, l h c -> b h n l") + rearrange(b, "l h -> 1 h 1 l")

    def _reach(self, n: int) -> int:
        """The position after the last one that may be global."""
        end = self.global_tokens * self.stride
        return end if end < n else n

    def _is_global(self, place: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        return (place % self.stride == 0) & (place < self.global_tokens * self.stride)


def truncated(*shape: int) -> Float[Tensor, "..."]:
    """Normal numbers with standard deviation 0.5, truncated at two deviations; the same in every version of torch."""
    edge = math.erf(2**0.5)
    return torch.empty(shape).uniform_(-edge, edge).erfinv() * 0.5**0.5
