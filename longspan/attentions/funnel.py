"""Funnel Transformer: neighbouring tokens are pooled into one query, and the pooled queries attend to all tokens.

    y_i = o_s(i)      o_s = sum_j softmax_j(a_sj) v_j      q = pool(x) W_q      k, v = x W_k, x W_v
    a_sj = ((q_s + u) . k_j + g_sj [(q_s + w) . W_r rho(p_s - j) + (q_s + z) . t_sj]) / sqrt(c)

s(i) is the pool of token i: `stride` tokens, whose "mean" or "max" is the query and whose first token has position p_s.
rho(d) are the sines and then the cosines of a signed distance. With `separate_cls` the first token is a pool of its
own, and g is 0 where it is the query or key, otherwise 1. With `token_types`, z and the two values of t are learned, t
by whether s and j have the same type; a slot has no types, so there all are the same. With `pool_q_only` off, keys and
values come from pooled tokens too. Padding does not count as a token: pools are cut over the real ones.

The paper's layer is shorter than its input by the factor `stride`. A slot must return an output for each token, so each
pool's output is repeated over its tokens, as in the paper's decoder; `shortened` returns one for each pool. Both
noncausal patterns are supported; two sequences have no distances between them, so as cross attention
a_sj = q_s . k_j / sqrt(c), ordinary attention with fewer queries. It cannot be causal: the first token of a pool gets
an output that depends on the last one's query. Compared with softmax attention it adds W_r [dim, inner], u and w, 8.3 %
of an encoder block; as cross attention nothing.

Paper: arXiv:2006.03236. Departs from the paper in: every layer repeats its output; no token is dropped to make the
length even (`truncate_seq`), the last pool just has fewer; padding is not averaged in. The paper's factorised form of
the distances is the same function as its relative shift, which is used here.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import repeat
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import NONCAUSAL_PATTERNS, Attention, AttentionMeta, Pattern
from longspan.attentions.relative import shifted, waves
from longspan.core.errors import UsageError
from longspan.kernels.masked import biased_attention, masked_attention
from longspan.kernels.packing import left_align, real
from longspan.kernels.precision import at_least_single


class Funnel(Attention):
    meta = AttentionMeta(
        title="Funnel Transformer",
        paper="arXiv:2006.03236",
        family="downsampling",
        cost="n^2",
        patterns=NONCAUSAL_PATTERNS,
        positions=True,
        dropout="weights",
        remark="Its length is halved inside a layer alone, as a slot wants an output for every token.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        stride: int = 2,
        pool: Literal["mean", "max"] = "mean",
        pool_q_only: bool = True,
        separate_cls: bool = True,
        token_types: bool = False,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        if stride < 1:
            raise UsageError(f"funnel pools at least 1 token, got stride={stride}.")
        if token_types and self.pattern.cross:
            raise UsageError(f"funnel compares token_types within a sequence; leave them out as {self.pattern}.")
        self.stride, self.pool, self.pool_q_only, self.separate_cls = stride, pool, pool_q_only, separate_cls
        self.query, self.key, self.value = (nn.Linear(dim, self.inner, bias=bias) for _ in range(3))
        self.out = nn.Linear(self.inner, dim, bias=bias)
        self.u = self.w = self.z = self.types = None
        if not self.pattern.cross:
            self.distance = nn.Linear(dim, self.inner, bias=False)  # W_r
            self.u, self.w = (nn.Parameter(torch.empty(heads, self.inner // heads).uniform_(0, 0.1)) for _ in range(2))
        if token_types:
            self.z = nn.Parameter(torch.empty(heads, self.inner // heads).uniform_(0, 0.1))
            self.types = nn.Parameter(torch.empty(2, heads, self.inner // heads).uniform_(0, 0.1))  # other, same

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        y, _ = self.shortened(x, context, mask=mask, context_mask=context_mask)
        y = repeat(y, "b s d -> b (s stride) d", stride=self.stride)[:, self._front : self._front + x.shape[1]]
        if mask is None:
            return y
        rows = torch.arange(len(x), device=x.device)[:, None]  # outputs back at their tokens, 0 elsewhere
        return y[rows, (mask.cumsum(dim=1) - 1).clamp(min=0)].masked_fill(~mask[..., None], 0)

    def shortened(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b s d"], Bool[Tensor, "#b s"]]:
        """The output of each pool, and which pools hold a token."""
        source, key_mask = self._source(x, context, mask, context_mask)
        aligned, tokens = _aligned(x, mask)
        pooled, exists = self.pooled(aligned, tokens)
        if not self.pattern.cross:
            source, key_mask = aligned, tokens
        if not self.pool_q_only:
            source, filled = self.pooled(*_aligned(source, key_mask)) if self.pattern.cross else (pooled, exists)
            key_mask = None if key_mask is None else filled
        q, k, v = self._split(self.query(pooled)), self._split(self.key(source)), self._split(self.value(source))
        step, unit = (self.stride, 1) if self.pool_q_only else (1, self.stride)
        return self._merge(self.mix(q, k, v, step=step, unit=unit, key_mask=key_mask)), exists

    def pooled(
        self, x: Float[Tensor, "b n d"], tokens: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b s d"], Bool[Tensor, "#b s"]]:
        """The pools of left-aligned tokens, and which of them hold any."""
        n, front = x.shape[1], self._front
        slots = (front + n + self.stride - 1) // self.stride
        missing, runs = (front, slots * self.stride - front - n), (slots, self.stride)
        tokens = torch.ones(1, n, dtype=torch.bool, device=x.device) if tokens is None else tokens
        exists = F.pad(tokens, missing).unflatten(1, runs)
        near = at_least_single(F.pad(x, (0, 0, *missing)).unflatten(1, runs))  # [b s stride d]
        near = near.masked_fill(~exists[..., None], torch.finfo(near.dtype).min if self.pool == "max" else 0)
        filled = exists.any(dim=2)
        if self.pool == "max":
            pools = near.amax(dim=2).masked_fill(~filled[..., None], 0)
        else:
            pools = near.sum(dim=2) / exists.sum(dim=2).clamp(min=1)[..., None]
        return pools.to(x.dtype), filled

    @property
    def _front(self) -> int:
        """Empty positions before the first token that make it a pool of its own."""
        return self.stride - 1 if self.separate_cls else 0

    def mix(
        self,
        q: Float[Tensor, "b h s c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m c"],
        *,
        step: int,
        unit: int = 1,
        key_mask: Bool[Tensor, "#b m"] | None = None,
        same: Bool[Tensor, "b s m"] | None = None,
    ) -> Float[Tensor, "b h s c"]:
        """The formula for queries `step` keys apart and keys `unit` tokens apart; `same` marks pairs of one type."""
        visible = None if key_mask is None else key_mask[:, None, None, :]
        if self.u is not None:
            bias = self._beside_content(q, k.shape[2], step, unit, same)
            q = q + self.u[:, None].to(q.dtype)
            return biased_attention(q, k, v, bias, visible, dropout=self.active_dropout)
        if visible is None:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=self.active_dropout)
        return masked_attention(q, k, v, visible, dropout=self.active_dropout)

    def _beside_content(
        self, q: Float[Tensor, "b h s c"], m: int, step: int, unit: int, same: Bool[Tensor, "b s m"] | None
    ) -> Float[Tensor, "b h s m"]:
        """g_sj [...] / sqrt(c); if the first token is a pool of its own, positions start after it."""
        apart, scale = int(self.separate_cls), q.shape[-1] ** -0.5  # scales q, smaller than the scores
        q, m = q[:, :, apart:], m - apart
        s = q.shape[2]
        if not (s and m):
            return q.new_zeros(*q.shape[:2], s + apart, m + apart)
        assert self.w is not None
        distance = torch.arange(step * (s - 1), -m, -1, device=q.device) * unit
        rho = waves(distance, self.dim, self.w.dtype)
        r = self.distance(rho).unflatten(-1, (self.heads, -1)).permute(1, 2, 0).to(q.dtype)
        bias = shifted((q + self.w[:, None].to(q.dtype)) * scale @ r, m, step=step)
        if self.z is not None and self.types is not None:
            kinds = torch.einsum("bhsc,thc->tbhs", (q + self.z[:, None].to(q.dtype)) * scale, self.types.to(q.dtype))
            kinds = kinds[..., None]
            one = kinds[1] if same is None else torch.where(same[:, None, apart:, apart:], kinds[1], kinds[0])
            bias = bias + one
        return F.pad(bias, (apart, 0, apart, 0))


def _aligned(
    x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None
) -> tuple[Float[Tensor, "b n d"], Bool[Tensor, "b n"] | None]:
    """The real tokens of each row moved to the front, and the mask of them there."""
    x, lengths = left_align(x, mask)
    return x, None if mask is None else real(lengths, x.shape[1])
