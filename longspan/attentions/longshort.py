"""Long-short attention: nearby tokens one by one and all others through a few summaries, under one softmax.

    y_i = sum_{j in N(i)} p_ij v_j + sum_{r in R(i)} p_ir v'_r      p_i = softmax_{j, r}(q_i . (k_j, k'_r) / sqrt(c))

Non-causal, with w = `window` (8 unless given):

    N(i)      the block of w tokens that holds i, and w // 2 (at least 1) tokens on either side of the block
    k', v'    LN'(sum_j P_jr k_j), and v alike, for P_r = softmax_j(x_j W_r), one for each of `landmarks` and each head
    R(i)      all of them
    k, v      LN(x W_k), LN(x W_v), also where they are summed

Causal, with w = `window` (512 unless given):

    N(i)      i and the w - 1 tokens before it
    k', v'    the same for each `chunk` of tokens, with a softmax over the chunk and `rank` summaries
    R(i)      the summaries of the chunks before that of i
    k, v      LN(x W_k), LN(x W_v) in N(i), and without LN where they are summed

LN and LN' are two layer norms over all heads together, each shared by keys and values. With a causal window shorter
than a chunk, some tokens are seen by no query. `conv` > 0 adds to the non-causal output a depth-wise convolution of v
with that many taps, one filter per head, initialised to zero. Padding does not count as tokens: it is neither seen nor
summed, and takes up no positions.

Paper: arXiv:2107.02192. Departs from the paper in: as in the authors' code, P comes from x and not from k, and in the
non-causal form both layer norms act on the summaries; positions are the backbone's. The causal layer with positions
and a memory of its own is `cab_longshort`.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, Attention, AttentionMeta, Pattern
from longspan.attentions.states import KeyValueRing
from longspan.core.errors import UsageError
from longspan.kernels.block_sparse.extra_keys import window_with_extra_keys
from longspan.kernels.cache import fill_ring
from longspan.kernels.layer_norm import layer_norm
from longspan.kernels.masked import attend_once
from longspan.kernels.packing import fill_up, left_align, real
from longspan.kernels.pooling import softmax_pooling
from longspan.kernels.precision import as_operand, at_least_single


@dataclass
class Past(KeyValueRing):
    """The last `window` keys and values, the summaries of complete chunks, and those of the current chunk so far."""

    far_k: Float[Tensor, "b h f c"]
    far_v: Float[Tensor, "b h f c"]
    begun: Float[Tensor, "b h r k_v"]  # softmax-weighted means of k and v
    lse: Float[Tensor, "b h r 1"]  # of the softmax logits of these means


class LongShort(Attention):
    meta = AttentionMeta(
        title="LongShort",
        paper="arXiv:2107.02192",
        family="hybrid",
        cost="n^2",
        patterns=SELF_PATTERNS,
        dropout="weights",
        remark="Linear when non-causal; against CAB's table, causally every later token sees the summary of a chunk.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        window: int | None = None,
        landmarks: int = 32,
        conv: int = 0,
        chunk: int = 16,
        rank: int = 1,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        causal = self.pattern.causal
        self.window = window if window is not None else 512 if causal else 8
        self.landmarks, self.chunk, self.rank = landmarks, chunk, rank
        if min(self.window, landmarks, chunk, rank) < 1:
            raise UsageError(
                f"window, landmarks, chunk and rank must be at least 1, got {self.window}, {landmarks}, {chunk} "
                f"and {rank}."
            )
        if conv and (conv < 0 or conv % 2 == 0):
            raise UsageError(
                f"conv counts the taps of a centred filter, got {conv}; choose an odd number, or 0 for none."
            )
        if conv and causal:
            raise UsageError(f"conv={conv} would look ahead; leave it out as {self.pattern}.")
        self.query, self.key, self.value = (nn.Linear(dim, self.inner, bias=bias) for _ in range(3))
        self.out = nn.Linear(self.inner, dim, bias=bias)
        self.near_norm, self.far_norm = nn.LayerNorm(self.inner), nn.LayerNorm(self.inner)
        # wrapped, since the backbone initialises bare linear layers
        self.summaries = nn.Sequential(nn.Linear(dim, heads * (rank if causal else landmarks), bias=bias))
        if conv:
            self.conv = nn.Conv2d(heads, heads, (conv, 1), padding=(conv // 2, 0), groups=heads, bias=False)
            nn.init.zeros_(self.conv.weight)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        self._source(x, context, mask, context_mask)
        x, lengths = left_align(x, mask)  # now every token before a real one is real
        if self.pattern.causal:
            y = self._causal(x)
        else:
            tokens = None if mask is None else real(lengths, x.shape[1])
            y = self.mix(self.query(x), self.key(x), self.value(x), self.summaries(x), tokens)
        if mask is not None:  # outputs back at their tokens, 0 elsewhere
            rows = torch.arange(len(x), device=x.device)[:, None]
            y = y[rows, (mask.cumsum(dim=1) - 1).clamp(min=0)].masked_fill(~mask[..., None], 0)
        return self.out(y)

    def _causal(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n inner"]:
        q, k, v = self._split(self.query(x)), self.key(x), self.value(x)
        far_k, far_v = self._chunk_summaries(k, v, self._split(self.summaries(x)))
        y = window_with_extra_keys(
            q, self._normed(self.near_norm, k), self._normed(self.near_norm, v), far_k, far_v,
            left=self.window - 1, chunk=self.chunk, rank=self.rank, dropout=self.active_dropout,
        )  # fmt: skip
        return rearrange(y, "b h n c -> b n (h c)")

    def mix(
        self,
        q: Float[Tensor, "b n d"],
        k: Float[Tensor, "b n d"],
        v: Float[Tensor, "b n d"],
        logits: Float[Tensor, "b n h_times_r"],
        mask: Bool[Tensor, "b n"] | None,
    ) -> Float[Tensor, "b n d"]:
        """The non-causal form between its projections."""
        w, side, dropout = self.window, max(self.window // 2, 1), self.active_dropout
        q, k, v = self._split(q), self._normed(self.near_norm, k), self._normed(self.near_norm, v)
        pooled = (softmax_pooling(self._split(logits), u, mask=mask) for u in (k, v))
        far_k, far_v = (self._normed(self.far_norm, rearrange(u, "b h r c -> b r (h c)")) for u in pooled)
        y = window_with_extra_keys(q, k, v, far_k, far_v, step=w, left=side, right=side, key_mask=mask, dropout=dropout)
        y = y if mask is None else y.masked_fill(~mask[:, None, :, None], 0)
        if hasattr(self, "conv"):
            v = v if mask is None else v.masked_fill(~mask[:, None, :, None], 0)
            y = y + self.conv(v).to(y.dtype)
        return rearrange(y, "b h n c -> b n (h c)")

    def prefill(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], Past]:
        self._needs_decoding()
        y = self(x, context, mask=mask, context_mask=context_mask) if x.shape[1] else x
        x, lengths = left_align(x, mask)
        k, v, logits = self.key(x), self.value(x), self._logits(x)
        near_k, near_v = (fill_ring(self._normed(self.near_norm, u), lengths, self.window) for u in (k, v))
        far_k, far_v = self._chunk_summaries(k, v, logits)
        begun = torch.arange(x.shape[1], device=x.device) >= (lengths // self.chunk * self.chunk)[:, None]
        begun = begun & real(lengths, x.shape[1])
        means = softmax_pooling(logits, self._pair(k, v).to(logits.dtype), mask=begun)
        lse = logits.masked_fill(~begun[:, None, :, None], -torch.inf).logsumexp(dim=2)[..., None]
        return y, Past(near_k, near_v, lengths, far_k, far_v, means, lse)

    def step(self, x_t: Float[Tensor, "b d"], state: Past) -> tuple[Float[Tensor, "b d"], Past]:
        self._needs_decoding()
        x, place = x_t[:, None], state.lengths
        q, k, v, logit = self._split(self.query(x))[:, :, 0], self.key(x), self.value(x), self._logits(x).mT
        lse = torch.logaddexp(state.lse, logit)
        share = (logit - lse).exp()  # softmax weight of this token in the chunk so far
        begun = state.begun.lerp(self._pair(k, v).to(share.dtype).expand_as(state.begun), share)
        k, v = (self._normed(self.near_norm, u)[:, :, 0] for u in (k, v))
        state = state.plus(k, v, begun=begun, lse=lse)
        far = torch.arange(state.far_k.shape[2], device=x.device) < (place // self.chunk * self.rank)[:, None]
        visible = torch.cat([far, state.positions >= 0], dim=1)[:, None]
        k, v = torch.cat([state.far_k, state.k], dim=2), torch.cat([state.far_v, state.v], dim=2)
        y = rearrange(attend_once(q.to(k.dtype), k, v, visible), "b h c -> b (h c)")
        whole = state.lengths % self.chunk == 0
        return self.out(as_operand(y, self.out.weight)), self._closed(state, whole) if whole.any() else state

    def _closed(self, state: Past, whole: Bool[Tensor, " b"]) -> Past:
        """The chunks of these rows are complete: their means become summaries, and new chunks begin."""
        last = state.lengths // self.chunk * self.rank
        place = torch.arange(max(int(last[whole].max()), state.far_k.shape[2]), device=last.device)
        slot = place - (last - self.rank)[:, None]  # which of the new summaries goes to each slot
        new = (whole[:, None] & (slot >= 0) & (slot < self.rank))[:, None, :, None]
        slot = slot.clamp(0, self.rank - 1)[:, None, :, None]
        means = (rearrange(u, "b h r c -> b r (h c)") for u in state.begun.chunk(2, dim=-1))
        far_k, far_v = (
            torch.where(
                new, self._normed(self.far_norm, u).to(old.dtype).take_along_dim(slot, 2), fill_up(old, len(place))
            )
            for u, old in zip(means, (state.far_k, state.far_v), strict=True)
        )
        lse = state.lse.masked_fill(whole[:, None, None, None], -torch.inf)
        return replace(state, far_k=far_k, far_v=far_v, lse=lse)

    def _chunk_summaries(
        self, k: Float[Tensor, "b n d"], v: Float[Tensor, "b n d"], logits: Float[Tensor, "b h n r"]
    ) -> tuple[Float[Tensor, "b h f c"], Float[Tensor, "b h f c"]]:
        """`rank` keys and values for every complete chunk."""
        b, whole = len(k), k.shape[1] // self.chunk * self.chunk
        logits, k, v = (
            rearrange(u[:, :, :whole], "b h (g s) c -> (b g) h s c", s=self.chunk)
            for u in (logits, self._split(k), self._split(v))
        )
        far = (rearrange(softmax_pooling(logits, u), "(b g) h r c -> b (g r) (h c)", b=b) for u in (k, v))
        far_k, far_v = (self._normed(self.far_norm, u) for u in far)
        return far_k, far_v

    def _logits(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b h n r"]:
        return at_least_single(self._split(self.summaries(x)))

    def _pair(self, k: Float[Tensor, "b n d"], v: Float[Tensor, "b n d"]) -> Float[Tensor, "b h n k_v"]:
        return torch.cat([self._split(k), self._split(v)], dim=-1)

    def _normed(self, norm: nn.LayerNorm, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b h n c"]:
        """A layer norm over all heads together."""
        return self._split(layer_norm(x, norm.weight, norm.bias, norm.eps))
