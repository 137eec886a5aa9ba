"""YOSO-E, the expectation of YOSO: a pair's weight is the probability that random hyperplanes do not separate it.

    y_i = u_i / |u_i|      u_i = sum_j w_ij v_j      w_ij = (1 - arccos(x_ij) / pi)^bits

with x_ij the cosine of the angle between q_i and k_j, over the real keys j, in causal self attention over j <= i. So w
is the probability that q_i and k_j have the same hash of `bits` signs. The norm of u takes the place of a sum of
weights. The derivative of w with respect to x is unbounded where q and k point the same way, so the paper defines the
gradient by a lower bound of it instead:

    dw / dx := (bits / 2) w      all other derivatives are what they are

`conv` > 0 adds a depth-wise convolution of v along the tokens, with that many taps, one filter per head; being centred,
it is only for noncausal self attention.

All pairs are weighted, in single precision or better, but a few queries at a time and again in the backward pass, so
memory is linear in the length. `yoso` samples some hashes instead, which makes the cost linear too and y an estimate.
It has no extra parameters but those of `conv`. Paper: arXiv:2111.09714. Departs from the paper in: x is kept within
[-1, 1], beyond which rounding would give NaN; and padding is honoured, which Hugging Face's port ignores. The authors'
second version (`authors_yoso`) shrinks x instead.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern, centred_conv
from longspan.attentions.states import KeyValueCache
from longspan.core.errors import UsageError
from longspan.kernels.collision_attention import collision, collision_attention
from longspan.kernels.precision import at_least_single, without_autocast


class YOSOE(HeadwiseAttention):
    meta = AttentionMeta(
        title="YOSO-E",
        paper="arXiv:2111.09714",
        family="hashing",
        cost="n^2",
        patterns=ALL_PATTERNS,
        surrogate_gradient=True,
        remark="The expectation over hashes, which is quadratic; no public code has cross or causal attention.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, bits: int = 9, conv: int = 0, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if bits < 1:
            raise UsageError(f"A hash has at least one bit, got bits={bits}.")
        if conv and self.pattern is not Pattern.NONCAUSAL_SELF:
            raise UsageError(f"conv={conv} looks to both sides of a query's own value; leave it out as {self.pattern}.")
        self.bits, self.conv = bits, centred_conv(heads, conv)

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        with without_autocast(q):
            values = _erase(at_least_single(v), key_mask)  # so the weight of a hidden key does not matter
            causal = self.pattern is Pattern.CAUSAL_SELF
            y = F.normalize(collision_attention(_unit(q), _unit(k), values, self.bits, causal=causal), dim=-1)
            if self.conv is not None:
                weight = self.conv.weight.to(values.dtype)
                y = y + F.conv2d(values, weight, padding="same", groups=self.heads)
        return y.to(v.dtype)

    def surrogate(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        """u with constant weights, plus their bound times x for constant values, through the slope of the norm at u."""
        with without_autocast(q):
            cosine, values = _unit(q) @ _unit(k).mT, _erase(at_least_single(v), key_mask)
            w = collision(cosine.detach().clone(), self.bits)
            w = w.tril() if self.pattern is Pattern.CAUSAL_SELF else w
            u, length = (w @ values).detach(), (w @ values).detach().norm(dim=-1, keepdim=True).clamp(min=1e-12)
            moved = w @ values + (self.bits / 2 * w * cosine) @ values.detach()
            along = (moved * u).sum(dim=-1, keepdim=True) / length
            y = (moved - along * u / length) / length
            if self.conv is not None:
                y = y + F.conv2d(values, self.conv.weight.to(values.dtype), padding="same", groups=self.heads)
        return y.to(v.dtype)

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> KeyValueCache:
        return KeyValueCache.of(k, v, key_mask)

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e"] | None,
        state: KeyValueCache,
    ) -> tuple[Float[Tensor, "b h e"], KeyValueCache]:
        state = state if k is None or v is None else state.plus(k, v)
        there = torch.arange(state.k.shape[2], device=q.device) < state.lengths[:, None]
        with without_autocast(q):
            w = collision(_unit(q[:, :, None]) @ _unit(state.k).mT, self.bits)
            y = F.normalize(w @ _erase(at_least_single(state.v), there), dim=-1)
        return y[:, :, 0].to(q.dtype), state


def _unit(x: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h n c"]:
    return F.normalize(at_least_single(x), dim=-1)


def _erase(x: Float[Tensor, "b h m e"], mask: Bool[Tensor, "b m"] | None) -> Float[Tensor, "b h m e"]:
    return x if mask is None else x.masked_fill(~mask[:, None, :, None], 0)
