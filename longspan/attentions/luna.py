"""Luna, nested linear attention: a short sequence P packs the tokens, and tokens attend to what it packed.

    Y_P = softmax(P_q C^T / sqrt(c)) C      y_i = softmax(q_i Y_C^T / sqrt(c)) Y_C      P' = LN(P + Y_P)

C are the keys (tied to the values unless `tied=False`) of the tokens, or of a context, and Y_C those of the packed Y_P.
P, of `slots` vectors, is learned, with sinusoids added; in noncausal self attention `carried` passes P' to the next
layer instead. In causal self attention P must not depend on later tokens: it stays as learned, and packing is a sum
over the prefix, with w_i = log2(1 + 2^(P_q . p(x_i) / sqrt(c))):

    a_t = softmax_slots(q_t . (1/t) sum_{i <= t} k_i w_i^T / sqrt(c))      y_t = a_t . (1/t) sum_{i <= t} w_i v_i^T

Cross patterns pack the context, so nothing is pooled over queries. `pack_heads` is the number of heads for packing, 0
meaning `heads`. Compared with softmax attention it adds one projection, P and a norm: 8.6 % of an encoder block with 16
slots, and up to 25 % untied. Paper: arXiv:2106.01540. Departs from the paper in: P always has all its slots (released
code cuts it to the longest source), t counts real tokens, and if queries are not as wide as the model, one more
projection maps Y_P to P'.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import ALL_PATTERNS, Attention, AttentionMeta, Pattern
from longspan.attentions.states import Carry, DecodeState
from longspan.core.errors import UsageError
from longspan.kernels.linear_attention import final_state, linear_attention, linear_attention_step
from longspan.kernels.masked import masked_attention
from longspan.kernels.precision import at_least_single


@dataclass
class Packed(Carry):
    """The packed sequence of a layer."""

    p: Float[Tensor, "b l d"]


@dataclass
class Sums(DecodeState):
    """Sums of k w^T and of w v^T over the tokens so far."""

    keys: Float[Tensor, "b h c l"]
    values: Float[Tensor, "b h l e"]
    lengths: Int[Tensor, " b"]


@dataclass
class PackedContext(DecodeState):
    """Keys and values of the packed context."""

    k: Float[Tensor, "b h l c"]
    v: Float[Tensor, "b h l e"]


class Luna(Attention):
    meta = AttentionMeta(
        title="Luna",
        paper="arXiv:2106.01540",
        family="low rank",
        cost="n",
        patterns=ALL_PATTERNS,
        dropout="weights",
        carries="layers",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        slots: int = 16,
        tied: bool = True,
        pack_heads: int = 0,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        self.pack_heads = pack_heads or heads
        if slots < 1 or pack_heads < 0 or self.inner % self.pack_heads:
            raise UsageError(
                f"Luna packs into at least 1 slot by heads that divide its width of {self.inner}, got slots={slots} "
                f"and pack_heads={pack_heads}."
            )
        causal, inner = self.pattern is Pattern.CAUSAL_SELF, self.inner
        self.tied = tied
        self.pack_query = nn.Linear(dim, inner, bias=bias)
        self.pack_key = nn.Linear(dim, inner, bias=bias)
        self.query = nn.Linear(dim, inner, bias=bias)
        self.key = nn.Linear(dim if causal else inner, inner, bias=bias)
        if not tied:
            self.pack_value = None if causal else nn.Linear(dim, inner, bias=bias)
            self.value = nn.Linear(dim if causal else inner, inner, bias=bias)
        self.out = nn.Linear(inner, dim, bias=bias)
        self.p = nn.Parameter(torch.randn(slots, dim) * dim**-0.5)
        self.register_buffer("places", sinusoid(slots, dim), persistent=False)
        if self.pattern is Pattern.NONCAUSAL_SELF:
            self.norm = nn.LayerNorm(dim)
            self.back = nn.Linear(inner, dim, bias=bias) if inner != dim else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        source, key_mask = self._source(x, context, mask, context_mask)
        if self.pattern is Pattern.CAUSAL_SELF:
            return self.causal(x, self.learned(), mask)
        return self._read(x, *self._slots(self.pack(self.learned(), source, key_mask)))

    def carried(
        self, x: Float[Tensor, "b n d"], *inputs: Any, carry: Packed | None = None, **masks: Any
    ) -> tuple[Float[Tensor, "b n d"], Packed | None]:
        if self.pattern is not Pattern.NONCAUSAL_SELF:
            return self(x, *inputs, **masks), carry
        p = self.learned().expand(len(x), -1, -1) if carry is None else carry.p
        packed = self.pack(p, x, masks.get("mask"))
        return self._read(x, *self._slots(packed)), Packed(self.norm(p + self.back(packed)))

    def learned(self) -> Float[Tensor, "1 l d"]:
        """P as it enters the first layer."""
        return (self.p * self.dim**0.5 + self.get_buffer("places").to(self.p.dtype))[None]

    def pack(
        self, p: Float[Tensor, "#b l d"], source: Float[Tensor, "b m d"], key_mask: Bool[Tensor, "b m"] | None
    ) -> Float[Tensor, "b l inner"]:
        """Y_P: every slot attends to the real tokens of the source."""
        value = self.pack_key if self.tied else self.pack_value
        assert value is not None
        k = self.pack_key(source)
        k, v = (self._heads(u, self.pack_heads) for u in (k, k if self.tied else value(source)))
        q = self._heads(self.pack_query(p), self.pack_heads).expand(len(k), -1, -1, -1)
        if key_mask is None:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.active_dropout)
        else:
            y = masked_attention(q, k, v, key_mask[:, None, None], dropout=self.active_dropout)
        return rearrange(y, "b h l c -> b l (h c)")

    def _slots(self, packed: Float[Tensor, "b l inner"]) -> tuple[Float[Tensor, "b h l c"], Float[Tensor, "b h l e"]]:
        k = self.key(packed)
        return self._split(k), self._split(k if self.tied else self.value(packed))

    def _read(
        self, x: Float[Tensor, "b n d"], k: Float[Tensor, "b h l c"], v: Float[Tensor, "b h l e"]
    ) -> Float[Tensor, "b n d"]:
        """Every token attends to the slots."""
        q = self._split(self.query(x))
        return self._merge(F.scaled_dot_product_attention(q, k, v, dropout_p=self.active_dropout))

    def causal(
        self, x: Float[Tensor, "b n d"], p: Float[Tensor, "#b l d"], mask: Bool[Tensor, "b n"] | None
    ) -> Float[Tensor, "b n d"]:
        """Every token attends to the packing of its prefix."""
        q, k, v, w = self._features(x, p, mask)
        if mask is None:
            count = torch.arange(1, x.shape[1] + 1, device=x.device)[None]
        else:
            count = mask.cumsum(dim=1).clamp(min=1)
        share = 1 / count.to(torch.promote_types(q.dtype, torch.float32))[:, None, :, None]
        scores = linear_attention(q, k, w, causal=True, normalize=False)
        a = torch.softmax(at_least_single(scores) * share, dim=-1)
        a = F.dropout(a, self.active_dropout) * share
        return self._merge(linear_attention(a.to(w.dtype), w, v, causal=True, normalize=False))

    def _features(
        self, x: Float[Tensor, "b n d"], p: Float[Tensor, "#b l d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b h n c"], Float[Tensor, "b h n c"], Float[Tensor, "b h n e"], Float[Tensor, "b h n l"]]:
        """q, k, v and the weights w of the slots, which are 0 at padding."""
        c = self.inner // self.heads
        of_slots = self._split(self.pack_query(p)) / c**0.5
        logits = at_least_single(self._split(self.pack_key(x)) @ of_slots.mT)
        w = F.dropout(F.softplus(logits, beta=math.log(2)), self.active_dropout)
        if mask is not None:
            w = w.masked_fill(~mask[:, None, :, None], 0)
        k = self.key(x)
        k, v = self._split(k), self._split(k if self.tied else self.value(x))
        return self._split(self.query(x)) / c**0.5, k, v, w.to(k.dtype)

    def _state_after(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, *context: Any) -> DecodeState:
        if self.pattern.cross:
            return PackedContext(*self._slots(self.pack(self.learned(), *context)))
        _, k, v, w = self._features(x, self.learned(), mask)
        if mask is not None:  # padding may hold NaN or inf, and 0 times those is not 0
            k, v = (u.masked_fill(~mask[:, None, :, None], 0) for u in (k, v))
        lengths = torch.full((len(x),), x.shape[1], device=x.device) if mask is None else mask.sum(dim=1)
        return Sums(final_state(k, w, normalize=False), final_state(w, v, normalize=False), lengths)

    def step(self, x_t: Float[Tensor, "b d"], state: Any) -> tuple[Float[Tensor, "b d"], Any]:
        self._needs_decoding()
        if isinstance(state, PackedContext):
            return self._read(x_t[:, None], state.k, state.v)[:, 0], state
        q, k, v, w = (u[:, :, 0] for u in self._features(x_t[:, None], self.learned()))
        lengths = state.lengths + 1
        share = 1 / lengths.to(torch.promote_types(q.dtype, torch.float32))[:, None, None]
        scores, keys = linear_attention_step(q, k, w, state.keys, normalize=False)
        a = torch.softmax(at_least_single(scores) * share, dim=-1) * share
        y, values = linear_attention_step(a.to(w.dtype), w, v, state.values, normalize=False)
        y = self._merge(y[:, :, None].to(v.dtype))[:, 0]
        return y, replace(state, keys=keys, values=values, lengths=lengths)

    def _heads(self, u: Float[Tensor, "b n inner"], heads: int) -> Float[Tensor, "b h n c"]:
        return rearrange(u, "b n (h c) -> b h n c", h=heads)


def sinusoid(length: int, dim: int) -> Float[Tensor, "n d"]:
    """Sines, then cosines, of wavelengths from 2 pi to 10000 * 2 pi."""
    frequency = 10_000 ** (-torch.arange(0, dim, 2) / dim)
    angle = torch.arange(length)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1)[:, :dim]
