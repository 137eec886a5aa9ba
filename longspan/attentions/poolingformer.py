"""Poolingformer: attention over a window, then attention over its pooled output in a wider window.

    y_i = sum_{j in N(i)} p_ij v_j        p_i = softmax_j(q_i . k_j / sqrt(c))      q, k, v from x
    z_i = sum_{s in S(i)} p'_is v'_s      p'_i = softmax_s(q'_i . k'_s / sqrt(c))   q', k', v' from y

The output is y_i + z_i. k'_s and v'_s are pooled over the `kernel` tokens around token s `stride`, as far as they
exist: with `pool` = "dynamic" by weights softmax(y_{s stride} G) of their own, else by their "mean" or "max".

    N(i)   |i - j| <= window / 2, and when causal i - window < j <= i
    S(i)   |i - s stride| <= pooled_window / 2, and when causal i - s stride < pooled_window and no token of s after i

Window sizes count all keys, both sides together. Padding does not count as tokens and takes up no positions. The
projections of the second level act head by head, 3 % more parameters than softmax attention has in an encoder block of
width 512; `dense` ones, as in the paper, are 25 % more.

Paper: arXiv:2105.04371. Departs from the paper in: the causal form, in which no later token is pooled; projections head
by head; every layer has both levels. Cross attention has no window, since queries have no position among the keys.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, Attention, AttentionMeta, Pattern
from longspan.attentions.states import KeyValueRing
from longspan.core.errors import UsageError
from longspan.kernels.block_sparse import sliding_window
from longspan.kernels.cache import fill_ring, put_in_ring, ring_positions
from longspan.kernels.masked import attend_once
from longspan.kernels.packing import left_align, real
from longspan.kernels.precision import as_operand, at_least_single, without_autocast


@dataclass
class TwoRings(KeyValueRing):
    """The keys and values of the window, the last `kernel` tokens of the second level, and its last pooled slots."""

    begun: Float[Tensor, "b h kernel y_k_v"]
    pooled: Float[Tensor, "b h slots k_v"]


class Poolingformer(Attention):
    meta = AttentionMeta(
        title="Poolingformer",
        paper="arXiv:2105.04371",
        family="sparse",
        cost="n",
        patterns=SELF_PATTERNS,
        dropout="weights",
        remark="CAB's table denies the causal form; a slot that is seen once its last token is there leaks nothing.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        window: int = 128,
        pooled_window: int = 512,
        kernel: int = 5,
        stride: int = 4,
        pool: Literal["dynamic", "mean", "max"] = "dynamic",
        dense: bool = False,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        if min(window, stride, kernel) < 1 or kernel % 2 == 0 or pooled_window < kernel + 2 * stride:
            raise UsageError(
                f"poolingformer needs a window and a stride of at least 1, an odd kernel, and room for two strides and "
                f"a kernel in its pooled window, got {window}, {stride}, {kernel} and {pooled_window}."
            )
        self.window, self.pooled_window, self.kernel, self.stride, self.pool = (
            window, pooled_window, kernel, stride, pool
        )  # fmt: skip
        self.query, self.key, self.value = (nn.Linear(dim, self.inner, bias=bias) for _ in range(3))
        self.out = nn.Linear(self.inner, dim, bias=bias)
        self.again = nn.Conv1d(self.inner, 3 * self.inner, 1, groups=1 if dense else heads, bias=bias)
        if pool == "dynamic":
            bound = (3 / (self.inner // heads)) ** 0.5
            self.generator = nn.Parameter(torch.empty(heads, self.inner // heads, kernel).uniform_(-bound, bound))

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        self._source(x, context, mask, context_mask)
        return self._aligned(*left_align(x, mask), mask)[0]

    def _aligned(
        self, x: Float[Tensor, "b n d"], lengths: Int[Tensor, " b"], mask: Bool[Tensor, "b n"] | None
    ) -> tuple[Float[Tensor, "b n d"], tuple[Tensor, ...]]:
        """The output at the positions of the tokens, and the parts of a decoding state; x is left-aligned."""
        tokens = None if mask is None else real(lengths, x.shape[1])
        q, k, v = (self._split(project(x)) for project in (self.query, self.key, self.value))
        left, right = (self.window - 1, 0) if self.pattern.causal else (self.window // 2, self.window // 2)
        y = sliding_window(q, k, v, left=left, right=right, key_mask=tokens, dropout=self.active_dropout)
        q2, k2, v2 = self._again(y)
        pooled_k, pooled_v = self._pooled(y, k2, v2, tokens)
        z = self._second(q2, pooled_k, pooled_v, None if mask is None else lengths)
        total = rearrange(y + z, "b h n c -> b n (h c)")
        if mask is not None:  # outputs back at their tokens, 0 elsewhere
            rows = torch.arange(len(x), device=x.device)[:, None]
            total = total[rows, (mask.cumsum(dim=1) - 1).clamp(min=0)].masked_fill(~mask[..., None], 0)
        return self.out(total), (k, v, torch.cat([y, k2, v2], dim=-1), torch.cat([pooled_k, pooled_v], dim=-1))

    def _again(self, y: Float[Tensor, "b h n c"]) -> tuple[Tensor, ...]:
        """Queries, keys and values of the second level."""
        groups = self.again.groups
        weight = rearrange(self.again.weight, "(g o) i 1 -> g o i", g=groups).to(y.dtype)
        y = rearrange(rearrange(y, "b h n c -> b n (h c)"), "b n (g i) -> b n g i", g=groups)
        maps = rearrange(einsum(y, weight, "b n g i, g o i -> b n g o"), "b n g o -> b n (g o)")
        maps = maps if self.again.bias is None else maps + self.again.bias.to(maps.dtype)
        return rearrange(maps, "b n (h t c) -> t b h n c", h=self.heads, t=3).to(y.dtype).unbind(0)

    def _pooled(
        self,
        y: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h n c"],
        v: Float[Tensor, "b h n c"],
        tokens: Bool[Tensor, "b n"] | None,
    ) -> tuple[Float[Tensor, "b h s c"], Float[Tensor, "b h s c"]]:
        """The slots, one for each complete or partial stride."""
        n, half = y.shape[2], self.kernel // 2
        beyond = half + (-n) % self.stride  # so that the last window is centred on its token
        tokens = torch.ones(1, n, dtype=torch.bool, device=y.device) if tokens is None else tokens
        exists = F.pad(tokens, (half, beyond)).unfold(1, self.kernel, self.stride)[:, None]
        near = (F.pad(u, (0, 0, half, beyond)).unfold(2, self.kernel, self.stride) for u in (k, v))
        pooled_k, pooled_v = (self._pool(u, y[:, :, :: self.stride], exists) for u in near)
        return pooled_k, pooled_v

    def _pool(
        self,
        near: Float[Tensor, "b h s c kernel"],
        middle: Float[Tensor, "b h s c"],
        exists: Bool[Tensor, "_b 1 s kernel"],
    ) -> Float[Tensor, "b h s c"]:
        if self.pool == "max":
            lowest = near.masked_fill(~exists[:, :, :, None], torch.finfo(near.dtype).min)
            return lowest.amax(dim=-1).masked_fill(~exists.any(dim=-1)[..., None], 0)
        with without_autocast(near):
            middle = at_least_single(middle)
            if self.pool == "mean":
                logits = middle.new_zeros(1, 1, 1, self.kernel)
            else:
                logits = middle @ self.generator.to(middle.dtype)
            lowest = logits.masked_fill(~exists, torch.finfo(logits.dtype).min)
            weights = lowest.softmax(dim=-1).masked_fill(~exists, 0)
            pooled = (at_least_single(near) * weights[..., None, :]).sum(dim=-1)
        return pooled.to(near.dtype)

    def _second(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h s c"],
        v: Float[Tensor, "b h s c"],
        lengths: Int[Tensor, " b"] | None,
    ) -> Float[Tensor, "b h n c"]:
        """All first queries of the strides, then all second ones...: for each of these a window moves slot by slot."""
        n, slots, key_mask = q.shape[2], k.shape[2], None
        if lengths is not None and not self.pattern.causal:
            key_mask = real(-(-lengths // self.stride), slots)
        q = F.pad(q, (0, 0, 0, slots * self.stride - n)).unflatten(2, (slots, self.stride))
        rows = []
        for r in range(self.stride):
            left, right = self._reach(r)
            late = min(max(-right, 0), slots)  # how many slots the window lies behind the query
            y = sliding_window(
                q[:, :, late:, r], k[:, :, : slots - late], v[:, :, : slots - late], left=left - late,
                right=max(right, 0), key_mask=key_mask, dropout=self.active_dropout,
            ) if late < slots else q[:, :, :0, r]  # fmt: skip
            rows.append(F.pad(y, (0, 0, late, 0)))
        return torch.stack(rows, dim=3).flatten(2, 3)[:, :, :n]

    def _reach(self, r: int) -> tuple[int, int]:
        """How many slots before and after its stride the r-th query of a stride sees."""
        if self.pattern.causal:
            return -((r - self.pooled_window) // self.stride + 1), (r - self.kernel // 2) // self.stride
        reach = self.pooled_window // 2
        return (reach - r) // self.stride, (reach + r) // self.stride

    def prefill(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], TwoRings]:
        self._needs_decoding()
        self._source(x, context, mask, context_mask)
        aligned, lengths = left_align(x, mask)
        if x.shape[1]:
            y, (k, v, second, pooled) = self._aligned(aligned, lengths, mask)
        else:
            y, k = x, self._split(self.key(x))
            v, second, pooled = k, k.repeat(1, 1, 1, 3), k.repeat(1, 1, 1, 2)
        k, v = (fill_ring(u, lengths, self.window) for u in (k, v))
        begun = fill_ring(second, lengths, self.kernel)
        return y, TwoRings(k, v, lengths, begun, fill_ring(pooled, self._last_slot(lengths - 1) + 1, self._slots))

    @property
    def _slots(self) -> int:
        """How many slots a causal query can see."""
        return self.pooled_window // self.stride + 1

    def _last_slot(self, t: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """The last slot that is complete with the token at position t, -1 if none is."""
        return ((t - self.kernel // 2) // self.stride).clamp(min=-1)

    def step(self, x_t: Float[Tensor, "b d"], state: TwoRings) -> tuple[Float[Tensor, "b d"], TwoRings]:
        self._needs_decoding()
        t = state.lengths
        q, k, v = (self._split(project(x_t[:, None]))[:, :, 0] for project in (self.query, self.key, self.value))
        state = state.plus(k, v)
        y = attend_once(q, state.k, state.v, (state.positions >= 0)[:, None])[:, :, None]
        q2, k2, v2 = self._again(y)
        begun = put_in_ring(state.begun, torch.cat([y, k2, v2], dim=-1)[:, :, 0], t)
        state = replace(state, begun=begun, pooled=self._with_slot(begun, state.pooled, t))
        slot = ring_positions(self._last_slot(t), self._slots)
        visible = (slot >= 0) & (t[:, None] - slot * self.stride < self.pooled_window)
        pooled_k, pooled_v = state.pooled.chunk(2, dim=-1)
        z = attend_once(q2[:, :, 0], pooled_k, pooled_v, visible[:, None])
        total = rearrange(y[:, :, 0] + z, "b h c -> b (h c)")
        return self.out(as_operand(total, self.out.weight)), state

    def _with_slot(
        self, begun: Float[Tensor, "b h kernel y_k_v"], pooled: Float[Tensor, "b h s k_v"], t: Int[Tensor, " b"]
    ) -> Float[Tensor, "b h s k_v"]:
        """The slots; in rows where the token at t completes a slot, with that slot added."""
        half = self.kernel // 2
        place = t[:, None] + torch.arange(1 - self.kernel, 1, device=t.device)
        y, k, v = begun.take_along_dim((place % self.kernel)[:, None, :, None], dim=2).chunk(3, dim=-1)
        exists = (place >= 0)[:, None, None]
        slot = torch.cat([self._pool(u.mT[:, :, None], y[:, :, half, None], exists) for u in (k, v)], dim=-1)[:, :, 0]
        whole = (t >= half) & ((t - half) % self.stride == 0)
        return torch.where(
            whole[:, None, None, None], put_in_ring(pooled, slot.to(pooled.dtype), (t - half) // self.stride), pooled
        )
