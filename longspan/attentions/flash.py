"""FLASH, a gated attention unit with mixed chunks: quadratic inside a group of tokens, linear between groups.

    u, v = silu(x W_u), silu(x W_v)      z = silu(x W_z)      q, k, q', k' = gamma z + beta, a pair of these each
    A = relu(q k^T / g + b)^2 inside a group of g tokens      y = (u * (A v + L v)) W_o

L v is q' (sum_j k'_j v_j^T) / n over all n real tokens or, in causal self attention, over those of the earlier groups,
divided by g; A is then triangular. b is a bias by distance in T5's 32 buckets, times the square root of `features`, the
width of z. The unit replaces attention and MLP, and two of them are about as large as one Transformer block, so one is
half a block. It has a single head, whatever a network requests. `activation="laplace"` uses Mega's function instead of
the squared ReLU, and `shift` takes half of the channels from the previous token, as a public package can. Gate and
values come from one sequence, so there are no cross patterns. Paper: arXiv:2202.10447. Departs from the paper in: norm
and residual connection are the network's, and so are positions beyond the bias (the paper rotates q and k).
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, Attention, AttentionMeta, Pattern
from longspan.attentions.states import DecodeState
from longspan.core.errors import UsageError
from longspan.kernels.landmark.pieces import weighted_sums
from longspan.kernels.packing import left_align
from longspan.kernels.precision import as_operand, at_least_single, bfloat16_or_single, without_autocast

BUCKETS, FARTHEST = 32, 128


@dataclass
class Groups(DecodeState):
    """The current group, and sums of k' v^T over it and over all earlier groups."""

    k: Float[Tensor, "b g s"]
    v: Float[Tensor, "b g e"]
    own: Float[Tensor, "b s e"]
    before: Float[Tensor, "b s e"]
    last: Float[Tensor, "b d"]  # token
    lengths: Int[Tensor, " b"]


class Flash(Attention):
    meta = AttentionMeta(
        title="FLASH",
        paper="arXiv:2202.10447",
        family="hybrid",
        cost="n",
        patterns=SELF_PATTERNS,
        positions=True,
        places="positions",
        dropout="weights",
        owns_block=True,
        remark="A gated unit in the place of attention and MLP, half as large as both; not FlashAttention.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        group: int = 256,
        features: int = 128,
        expansion: float = 2.0,
        activation: Literal["relu2", "laplace"] = "relu2",
        shift: bool = False,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        width = int(expansion * dim)
        if group < 1 or features < 1 or width < 1:
            raise UsageError(
                f"FLASH needs groups, features and an expansion of at least one channel, got group={group}, "
                f"features={features} and expansion={expansion}."
            )
        self.group, self.activation, self.shift = group, activation, shift
        self.hidden = nn.Linear(dim, 2 * width, bias=bias)  # v and u
        self.shared = nn.Linear(dim, features, bias=bias)  # z
        self.out = nn.Linear(width, dim, bias=bias)
        self.gamma = nn.Parameter(torch.randn(4, features) * 0.02)  # of q, q', k, k'
        self.beta = nn.Parameter(torch.zeros(4, features))
        self.bias = nn.Parameter(torch.randn(BUCKETS) * 0.02)  # small, lest its sum of squares swamp the scores
        self.register_buffer("buckets", buckets(group, self.pattern.causal), persistent=False)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        self._source(x, context, mask, context_mask)
        return self.unit(x, mask, None if mask is None else mask.sum(dim=1))

    def unit(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, count: Int[Tensor, " b"] | None
    ) -> Float[Tensor, "b n d"]:
        """The formula, where `count` is n for each row (None: all of x)."""
        v, u, parts = self._features(self._shifted(x, mask), mask)
        n, size = x.shape[1], min(self.group, x.shape[1])  # a short row is a single group
        with without_autocast(x):  # products in their operands' dtype, sums over groups in float32
            q, far_q, k, far_k, groups = (_grouped(bfloat16_or_single(part), size) for part in (*parts, v))
            near_q, near_k, values = (part.flatten(0, 1) for part in (q, k, groups))
            scores = torch.baddbmm(self._bias(size).to(q.dtype), near_q, near_k.mT, alpha=1 / self.group)
            weights = self._activated(scores)
            weights = F.dropout(weights.tril() if self.pattern.causal else weights, self.active_dropout)
            near = (weights @ values).unflatten(0, groups.shape[:2])
            y = self._with_far(near, far_q, far_k, groups, count, n).to(v.dtype).flatten(1, 2)[:, :n]
        return self.out(as_operand(u * y, self.out.weight))

    def _with_far(
        self,
        near: Float[Tensor, "b groups g e"],
        q: Float[Tensor, "b groups g s"],
        k: Float[Tensor, "b groups g s"],
        v: Float[Tensor, "b groups g e"],
        count: Int[Tensor, " b"] | None,
        n: int,
    ) -> Float[Tensor, "b groups g e"]:
        """L v added to the attention within groups."""
        single = torch.promote_types(q.dtype, torch.float32)
        if self.pattern.causal:
            sums = (k[:, :-1].mT @ v[:, :-1]).cumsum(dim=1, dtype=single).to(q.dtype)  # up to the previous group
            before = F.pad(sums, (0, 0, 0, 0, 1, 0)).flatten(0, 1)
            y = torch.baddbmm(near.flatten(0, 1), q.flatten(0, 1), before, alpha=1 / self.group)
            return y.unflatten(0, near.shape[:2])
        number = n if count is None else count.clamp(min=1).to(single)[:, None, None]
        q, k, v = (part.flatten(1, 2) for part in (q, k, v))
        total = (weighted_sums(k[:, None], v[:, None], dtype=single)[:, 0] / number).to(q.dtype)
        return torch.baddbmm(near.flatten(1, 2), q, total).unflatten(1, near.shape[1:3])

    def _shifted(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n d"]:
        """x, with the first half of the channels from the previous token if `shift` is set."""
        if not self.shift:
            return x
        moved, stays = x.chunk(2, dim=-1)
        moved = moved if mask is None else moved.masked_fill(~mask[..., None], 0)
        return torch.cat([F.pad(moved, (0, 0, 1, 0))[:, : x.shape[1]], stays], dim=-1)

    def _features(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b n e"], Float[Tensor, "b n e"], list[Float[Tensor, "b n s"]]]:
        """v, which is 0 at padding, u, and q, q', k, k'."""
        v, u = F.silu(self.hidden(x)).chunk(2, dim=-1)
        z = F.silu(self.shared(x))
        if mask is not None:
            v = v.masked_fill(~mask[..., None], 0)
        pairs = zip(self.gamma.to(z.dtype), self.beta.to(z.dtype), strict=True)
        return v, u, [torch.addcmul(beta, z, gamma) for gamma, beta in pairs]

    def _activated(self, scores: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if self.activation == "relu2":
            return F.relu(scores).square()
        deviation = (4 * math.pi) ** -0.5
        apart = (at_least_single(scores) - 0.5**0.5) / (deviation * 2**0.5)
        return ((1 + torch.special.erf(apart)) / 2).to(scores.dtype)

    def _bias(self, size: int) -> Float[Tensor, "g g"]:
        place = torch.arange(size, device=self.bias.device)
        return self._bias_at(place[:, None] - place)

    def _bias_at(self, distance: Int[Tensor, "*pairs"]) -> Float[Tensor, "*pairs"]:
        table = at_least_single(self.bias)[self.get_buffer("buckets")] * self.gamma.shape[1] ** 0.5
        return table[distance + self.group - 1]

    def _state_after(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, *context: Any) -> Groups:
        x, lengths = left_align(x, mask)
        real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        v, _, (_, _, k, far_k) = self._features(self._shifted(x, real), real)
        start = lengths // self.group * self.group
        past = (torch.arange(x.shape[1], device=x.device) < start[:, None])[..., None]
        with without_autocast(x):
            far_k, wide = at_least_single(far_k), at_least_single(v)
            before, own = ((far_k * part).mT @ wide for part in (past, ~past))
        index = start[:, None] + torch.arange(self.group, device=x.device)
        inside = (index < lengths[:, None])[..., None]
        k, v = (F.pad(part, (0, 0, 0, self.group)) for part in (k, v))
        k, v = (part.gather(1, index[..., None].expand(-1, -1, part.shape[2])) * inside for part in (k, v))
        last = F.pad(x, (0, 0, 1, 0))[torch.arange(len(x), device=x.device), lengths]
        return Groups(k, v, own, before, last, lengths)

    def step(self, x_t: Float[Tensor, "b d"], state: Groups) -> tuple[Float[Tensor, "b d"], Groups]:
        self._needs_decoding()
        both = torch.stack([state.last.to(x_t.dtype), x_t], dim=1)
        v, u, parts = self._features(self._shifted(both)[:, 1:])
        q, far_q, k, far_k = (part[:, 0] for part in parts)
        rows, slot = torch.arange(len(x_t), device=x_t.device), state.lengths % self.group
        keys, values = state.k.index_put((rows, slot), k.to(state.k.dtype)), state.v.index_put((rows, slot), v[:, 0])
        distance = slot[:, None] - torch.arange(self.group, device=x_t.device)
        scores = at_least_single((keys @ q[..., None].to(keys.dtype))[..., 0]) / self.group + self._bias_at(distance)
        weights = self._activated(scores)
        near = (weights * (distance >= 0)).to(values.dtype)[:, None] @ values
        with without_autocast(x_t):
            far = at_least_single(far_q)[:, None] @ (state.before / self.group)
            own = state.own + at_least_single(far_k)[..., None] * at_least_single(v)
        y = self.out(as_operand(u * (near + far.to(v.dtype)), self.out.weight))[:, 0]
        full = (slot == self.group - 1)[:, None, None]
        before, own = torch.where(full, state.before + own, state.before), own.masked_fill(full, 0)
        return y, Groups(keys, values, own, before, x_t, state.lengths + 1)


def _grouped(x: Float[Tensor, "b n c"], size: int) -> Float[Tensor, "b groups g c"]:
    missing = -x.shape[1] % size
    return (F.pad(x, (0, 0, 0, missing)) if missing else x).unflatten(1, (-1, size))  # padding by 0 copies too


def buckets(group: int, causal: bool) -> Int[Tensor, " distances"]:
    """T5's bucket of every distance from 1 - group on: near distances have one each, far ones share logarithmically."""
    distance = torch.arange(1 - group, group)
    half = BUCKETS if causal else BUCKETS // 2
    later = torch.zeros_like(distance) if causal else (distance < 0).long() * half
    size = distance.clamp(min=0) if causal else distance.abs()
    exact = half // 2
    shared = exact + ((size.clamp(min=1) / exact).log() / math.log(FARTHEST / exact) * (half - exact)).long()
    return later + torch.where(size < exact, size, shared.clamp(max=half - 1))
