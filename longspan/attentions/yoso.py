"""YOSO, you only sample once: a query sums the values of the keys that have the same hash, over a number of hashes.

    y_i = u_i / |u_i|      u_i = 1 / s sum_{h <= s} sum_{j : f_h(k_j) = f_h(q_i)} v_j      f_h(x) = sign(x P_h)

with s = `hashes` and Gaussian P_h of `bits` columns, over the real keys j, in causal self attention over j <= i. So a
pair has weight w_ij, the share of hashes that agree on it: a Bernoulli sample of (1 - arccos(x_ij) / pi)^bits, where
x_ij is the cosine of the angle between q_i and k_j. The error of u falls as 1 / sqrt(s); `yoso_e` is the limit. The
norm of u takes the place of a sum of weights; where nothing collides, y is 0. A sample has no derivative with respect
to x, and that of its expectation is unbounded, so the paper defines the gradient by a lower bound of it, sampled by the
same hashes:

    dw / dx := (bits / 2) w      all other derivatives are what they are

`conv` > 0 adds a depth-wise convolution of v along the tokens, with that many taps, one filter per head; being centred,
it is only for noncausal self attention. It has no extra parameters but those of `conv`.

Time and memory are linear in the length: values are summed for each bucket, and in the backward pass products of values
and keys. Decoding keeps the sums of all buckets, hashes * 2^bits * c numbers per head. Hashes are computed in single
precision even under autocast. Paper: arXiv:2111.09714. Departs from the paper in: P is drawn once, saved with the
weights, and never redrawn, while the authors redraw it at every call, in evaluation too; padding is honoured; causal
and cross attention, which no public code has. The authors' second version, in expectation, is `authors_yoso`.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern, centred_conv
from longspan.attentions.states import DecodeState
from longspan.core.errors import UsageError
from longspan.kernels.bucket_sums import agreements, bucket_sums
from longspan.kernels.precision import at_least_single, without_autocast

MOST_BITS = 24


@dataclass
class Tables(DecodeState):
    """The sum of values in every bucket of every hash."""

    sums: Float[Tensor, "b h s codes e"]


class YOSO(HeadwiseAttention):
    meta = AttentionMeta(
        title="YOSO",
        paper="arXiv:2111.09714",
        family="hashing",
        cost="n",
        patterns=ALL_PATTERNS,
        stochastic=True,
        surrogate_gradient=True,
        remark="No public code has cross or causal attention; the authors draw new hashes at every call.",
    )

    planes: Float[Tensor, "c s bits"]

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        hashes: int = 32,
        bits: int = 9,
        conv: int = 0,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if hashes < 1 or not 1 <= bits <= MOST_BITS:
            raise UsageError(
                f"yoso needs at least 1 hash of 1 to {MOST_BITS} bits, got hashes={hashes} and bits={bits}; "
                "for the expectation over all hashes take yoso_e."
            )
        if conv and self.pattern is not Pattern.NONCAUSAL_SELF:
            raise UsageError(f"conv={conv} looks to both sides of a query's own value; leave it out as {self.pattern}.")
        self.hashes, self.bits, self.conv = hashes, bits, centred_conv(heads, conv)
        self.register_buffer("planes", torch.randn(self.head_dim, hashes, bits))

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
            q, k, values = _unit(q), _unit(k), _erase(v, key_mask)
            causal = self.pattern is Pattern.CAUSAL_SELF
            torch._check(len(q) == len(k))  # torch 2.11 cannot compile a Function that establishes this inside
            u = bucket_sums(q, k, values, self.hash(q), self.hash(k), slope=self.bits / 2, causal=causal) / self.hashes
            return self._with_conv(F.normalize(u, dim=-1), at_least_single(values)).to(v.dtype)

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
            q, k, values = _unit(q), _unit(k), _erase(at_least_single(v), key_mask)
            w = self.sample(q, k)
            u, length = (w @ values).detach(), (w @ values).detach().norm(dim=-1, keepdim=True).clamp(min=1e-12)
            moved = w @ values + (self.bits / 2 * w * (q @ k.mT)) @ values.detach()
            along = (moved * u).sum(dim=-1, keepdim=True) / length
            return self._with_conv((moved - along * u / length) / length, values).to(v.dtype)

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Tables:
        with without_autocast(k):
            values, codes = _erase(v, key_mask), self.hash(k)
            every = torch.arange(2**self.bits, device=k.device, dtype=codes.dtype)
            every = every[:, None].expand(*k.shape[:2], -1, 1)
            sums = [bucket_sums(None, None, values, every, code) for code in codes.split(1, dim=3)]
            return Tables(torch.stack(sums, dim=2))

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e"] | None,
        state: Tables,
    ) -> tuple[Float[Tensor, "b h e"], Tables]:
        with without_autocast(q):
            if k is not None and v is not None:
                index, value = self._rows(k, state), at_least_single(v)[:, :, None, None]
                state = replace(state, sums=state.sums.scatter_add(3, index, value.expand_as(index)))
            u = state.sums.gather(3, self._rows(q, state)).mean(dim=2)[:, :, 0]
            return F.normalize(u, dim=-1).to(q.dtype), state

    @torch.no_grad()
    def hash(self, x: Float[Tensor, "b h n c"]) -> Int[Tensor, "b h n s"]:
        """The code of each token in each hash: its signs as binary digits, computed digit by digit for all hashes."""
        x = at_least_single(x)
        kind = torch.int16 if self.bits < 16 else torch.int32
        codes = torch.zeros(*x.shape[:3], self.hashes, dtype=kind, device=x.device)
        for digit, planes in enumerate(self.planes.to(x.dtype).unbind(dim=2)):
            codes += (x @ planes > 0).to(kind) << digit
        return codes

    @torch.no_grad()
    def sample(self, q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h m c"]) -> Float[Tensor, "b h n m"]:
        """w of all pairs that may see each other: the share of hashes that agree, as a matrix."""
        w = agreements(self.hash(q), self.hash(k)).to(q.dtype) / self.hashes
        return w.tril() if self.pattern is Pattern.CAUSAL_SELF else w

    def _rows(self, x: Float[Tensor, "b h c"], state: Tables) -> Int[Tensor, "b h s 1 e"]:
        """The indices of a token's buckets in the tables."""
        code = rearrange(self.hash(at_least_single(x)[:, :, None]), "b h 1 s -> b h s 1 1").long()
        return code.expand(-1, -1, -1, -1, state.sums.shape[4])

    def _with_conv(self, y: Float[Tensor, "b h n e"], values: Float[Tensor, "b h m e"]) -> Float[Tensor, "b h n e"]:
        if self.conv is None:
            return y
        return y + F.conv2d(values, self.conv.weight.to(values.dtype), padding="same", groups=self.heads)


def _unit(x: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h n c"]:
    return F.normalize(at_least_single(x), dim=-1)


def _erase(x: Float[Tensor, "b h m e"], mask: Bool[Tensor, "b m"] | None) -> Float[Tensor, "b h m e"]:
    return x if mask is None else x.masked_fill(~mask[:, None, :, None], 0)
