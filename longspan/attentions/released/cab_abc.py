"""ABC as CAB released it: in causal self attention the slots hold only the current token.

    K~_t = phi_t k_t^T      V~_t = psi_t v_t^T      y_t = softmax_slots(q_t . K~_t / sqrt(c)) V~_t
    phi_t = exp(k_t A) / sum_{j <= t} exp(k_j A)      psi_t = exp(v_t B) / sum_{j <= t} exp(v_j B)

The idea (`abc`) is slots that sum over the past, K~_t = sum_{j <= t} ..., and the release leaves the sum out. What
remains is y_t = g_t v_t with a number g_t between 0 and 1 for each head: earlier tokens act only through the
normalisers. Decoding is the same. The other patterns are correct in the release, and here as in `abc`.

Code: Shark-NLP/CAB, modules/abc.py. Departs from it in: no memory of slots times width is kept for each position, as g
needs none; a causal row that has seen no real token outputs 0, a case in which the release was not run.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import DecodeState
from longspan.core.errors import UsageError
from longspan.kernels.precision import at_least_single, without_autocast


@dataclass
class RunningNormalisers(DecodeState):
    """The log-sum-exp of the logits so far, for each slot of the key and of the value memory."""

    keys: Float[Tensor, "b h r"]
    values: Float[Tensor, "b h r"]


@dataclass
class PooledContext(DecodeState):
    """The slots of the context of a cross pattern, pooled once."""

    keys: Float[Tensor, "b h r c"]
    values: Float[Tensor, "b h r e"]


class CABABC(HeadwiseAttention):
    meta = AttentionMeta(
        title="ABC (CAB)",
        paper="arXiv:2210.07661",
        family="bounded memory",
        cost="n",
        patterns=ALL_PATTERNS,
        rowwise=True,
        fidelity=True,
        remark="Its causal self attention only rescales the current value: the sum over the past is missing.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, slots: int = 16, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if slots < 1:
            raise UsageError(f"cab_abc needs at least one slot, got slots={slots}.")
        self.control_key, self.control_value = (nn.Parameter(torch.empty(self.head_dim, slots)) for _ in range(2))
        for control in (self.control_key, self.control_value):
            nn.init.xavier_uniform_(control, gain=2**-0.5)

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        if self.pattern is not Pattern.CAUSAL_SELF:
            return _read(q, self._slots(k, v, key_mask)).to(v.dtype)
        with without_autocast(q):
            phi, psi = ((a - a.logcumsumexp(dim=2)).exp() for a in self._logits(k, v, key_mask))
            y = (_gate(q, k, phi, psi) * v).to(v.dtype)
        return y if key_mask is None else y.masked_fill(~key_mask[:, None, :, None], 0)

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> DecodeState:
        if self.pattern.cross:
            return self._slots(k, v, key_mask)
        with without_autocast(k):
            # one more logit with negligible weight, so that an empty prefix has a sum too
            logits = (F.pad(a, (0, 0, 0, 1), value=_least(a)) for a in self._logits(k, v, key_mask))
            return RunningNormalisers(*(a.logsumexp(dim=2) for a in logits))

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e"] | None,
        state: Any,
    ) -> tuple[Float[Tensor, "b h e"], DecodeState]:
        if k is None or v is None:
            return _read(q[:, :, None], state)[:, :, 0].to(q.dtype), state
        with without_autocast(q):
            a, b = (logits[:, :, 0] for logits in self._logits(k[:, :, None], v[:, :, None], None))
            state = RunningNormalisers(torch.logaddexp(state.keys, a), torch.logaddexp(state.values, b))
            return (_gate(q, k, (a - state.keys).exp(), (b - state.values).exp()) * v).to(v.dtype), state

    def _logits(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], key_mask: Bool[Tensor, "b m"] | None
    ) -> tuple[Float[Tensor, "b h m r"], Float[Tensor, "b h m r"]]:
        """k A and v B, and for padding a logit with negligible weight."""
        k, v = at_least_single(k), at_least_single(v)
        a, b = k @ self.control_key.to(k.dtype), v @ self.control_value.to(v.dtype)
        if key_mask is not None:
            a, b = (u.masked_fill(~key_mask[:, None, :, None], _least(u)) for u in (a, b))
        return a, b

    def _slots(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], key_mask: Bool[Tensor, "b m"] | None
    ) -> PooledContext:
        """The slots of all keys and values together; 0 if none is real."""
        with without_autocast(k):
            weights = (a.softmax(dim=2) for a in self._logits(k, v, key_mask))
            if key_mask is not None:
                weights = (p.masked_fill(~key_mask[:, None, :, None], 0) for p in weights)
            return PooledContext(*(p.mT @ at_least_single(u) for p, u in zip(weights, (k, v), strict=True)))


def _read(q: Float[Tensor, "b h n c"], slots: PooledContext) -> Float[Tensor, "b h n e"]:
    with without_autocast(q):
        return F.scaled_dot_product_attention(q.to(slots.keys.dtype), slots.keys, slots.values)


def _gate(
    q: Float[Tensor, "*t c"], k: Float[Tensor, "*t c"], phi: Float[Tensor, "*t r"], psi: Float[Tensor, "*t r"]
) -> Float[Tensor, "*t 1"]:
    """softmax_slots(q . k phi / sqrt(c)) . psi, to which the slots of a single token reduce."""
    agreement = (at_least_single(q) * at_least_single(k)).sum(dim=-1, keepdim=True) / q.shape[-1] ** 0.5
    return ((agreement * phi).softmax(dim=-1) * psi).sum(dim=-1, keepdim=True)


def _least(logits: Tensor) -> float:
    return torch.finfo(logits.dtype).min / 4  # finite, and far below any logit
