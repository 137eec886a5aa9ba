"""Flowformer: linear attention as a flow from keys to queries, in which what is given and what is taken are conserved.

    I_i = phi(q_i) . sum_j phi(k_j)              O_j = phi(k_j) . sum_i phi(q_i)              incoming, outgoing flow
    I'_i = phi(q_i) . sum_j phi(k_j) / O_j       O'_j = phi(k_j) . sum_i phi(q_i) / I_i       with the other one fixed
    y_i = sigmoid(I'_i n / m) / I_i phi(q_i) . sum_j phi(k_j) m softmax_j(O'_j) v_j^T

with phi = sigmoid, over the real queries i and keys j, n and m of them. Keys compete over what they give, queries are
allocated what they take. O' is clamped to +-`clamp`, and `eps` is added to both factors of every product that is a
flow. In causal self attention all sums run over the tokens up to t, and counts keep their scale,

    I'_t = phi(q_t) . sum_{j <= t} phi(k_j) (j / O_j) / t      O'_t = phi(k_t) . sum_{i <= t} phi(q_i) (i / I_i) / t
    y_t = sigmoid(I'_t) / I_t phi(q_t) . sum_{j <= t} phi(k_j) w_j v_j^T      w_j = j exp(O'_j) / sum_{l <= j} exp(O'_l)

so that the weight of a key is fixed when it arrives, and decoding keeps five sums. Causal cross attention is left out:
what a key gives would have to exclude later queries, separately for every query, which costs n m.

It has the same parameters as softmax attention. Paper: arXiv:2202.06258. Departs from the paper in: padding is
honoured.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import DecodeState
from longspan.core.errors import UsageError
from longspan.kernels.linear_attention import linear_attention
from longspan.kernels.precision import at_least_single, bfloat16_or_single, without_autocast
from longspan.kernels.running_sum import running_sum

MOST = 50  # of a clamp: exp(-clamp) has to stay in the range of single precision, and so has its inverse times n


@dataclass
class Flows(DecodeState):
    """Sums over the tokens so far."""

    flows: Float[Tensor, "b h 4 c"]  # sums of phi(k), phi(q), phi(k) j / O_j and phi(q) i / I_i
    competition: Float[Tensor, "b h 1"]  # sum of exp(O')
    memory: Float[Tensor, "b h c e"]  # sum of phi(k) w v^T
    count: Float[Tensor, " b"]


@dataclass
class Side:
    """Queries or keys, which of them are real, and for each the sum of phi over its channels, 0 for padding."""

    x: Float[Tensor, "b h n c"]
    mask: Bool[Tensor, "b n"] | None
    real: Float[Tensor, "b 1 n 1"]
    mass: Float[Tensor, "b h n 1"]

    @classmethod
    def of(cls, x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None) -> "Side":
        mass = x.sigmoid().sum(dim=-1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
        real = _real(mass, mask)
        return cls(x, mask, real, mass * real)


class Flowformer(HeadwiseAttention):
    meta = AttentionMeta(
        title="Flowformer",
        paper="arXiv:2202.06258",
        family="kernel",
        cost="n",
        patterns=(Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_CROSS),
        remark="CAB's table grants causal cross attention, in which the sum over queries would let later ones in.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, clamp: float = 1.0, eps: float = 1e-6, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if clamp <= 0 or eps <= 0:
            raise UsageError(f"flowformer needs a positive clamp and eps, got clamp={clamp} and eps={eps}.")
        if clamp > MOST:
            raise UsageError(
                f"flowformer exponentiates flows of up to clamp, got clamp={clamp}; choose at most {MOST}."
            )
        self.clamp, self.eps = clamp, eps

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        causal = self.pattern is Pattern.CAUSAL_SELF
        add, dtype = running_sum if causal else _total, v.dtype
        with without_autocast(q):
            q, k, v = map(bfloat16_or_single, (q, k, v))
            queries, keys = Side.of(q, key_mask if causal else query_mask), Side.of(k, key_mask)
            n, m = add(queries.real).clamp(min=1), add(keys.real).clamp(min=1)
            unit = m if causal else 1
            incoming, outgoing = self._flow(queries, keys), self._flow(keys, queries)
            allotted = self._flow(queries, keys, unit / outgoing) * n / (m * unit)
            competition = self._competition(self._flow(keys, queries, unit / incoming) / unit) * keys.real
            share = m * competition / add(competition).clamp(min=torch.finfo(m.dtype).tiny)
            how = {"feature": "sigmoid", "causal": causal, "key_mask": key_mask, "normalize": False}
            y = linear_attention(q, k, v * share.to(v.dtype), **how)
            return (y * (queries.real * allotted.sigmoid() / incoming).to(y.dtype)).to(dtype)

    weights = HeadwiseAttention.weights_by_attending

    def prefill(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], Flows]:
        self._needs_decoding()
        self._source(x, context, mask, context_mask)
        q, k, v = (self._split(project(x)) for project in (self.query, self.key, self.value))
        with without_autocast(q):
            y, state = self._continue(q, k, v, mask, self._nothing(v))
        return (self._merge(y) if x.shape[1] else x), state

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e"] | None,
        state: Flows,
    ) -> tuple[Float[Tensor, "b h e"], Flows]:
        assert k is not None
        assert v is not None
        with without_autocast(q):
            y, after = self._continue(q[:, :, None], k[:, :, None], v[:, :, None], None, state)
        return y[:, :, 0], after

    def _flow(
        self, one: "Side", other: "Side", weight: Float[Tensor, "b h m 1"] | None = None
    ) -> Float[Tensor, "b h n 1"]:
        """(phi(one) + eps) . (the weighted sum of phi(other) + eps), in token order where there is one."""
        causal = self.pattern is Pattern.CAUSAL_SELF
        weight = torch.ones_like(other.mass) if weight is None else weight
        how = {"feature": "sigmoid", "causal": causal, "key_mask": other.mask, "normalize": False}
        found = linear_attention(one.x, other.x, weight.to(other.x.dtype), **how)
        total = (running_sum if causal else _total)(other.mass * weight)
        return at_least_single(found) + self.eps * (one.mass + total + self.eps * self.head_dim)

    def _competition(self, flow: Float[Tensor, "b h m 1"]) -> Float[Tensor, "b h m 1"]:
        """exp(O'), relative to its largest possible value."""
        return (flow.clamp(-self.clamp, self.clamp) - self.clamp).exp()

    def _continue(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h n c"],
        v: Float[Tensor, "b h n e"],
        mask: Bool[Tensor, "b n"] | None,
        state: Flows,
    ) -> tuple[Float[Tensor, "b h n e"], Flows]:
        """The causal outputs after the tokens of a state, and the state after these too."""
        if v.shape[2] == 0:
            return v, state
        (phi_q, real), (phi_k, _) = _features(q, mask), _features(k, mask)
        t = (state.count[:, None, None, None] + real.cumsum(dim=2)).clamp(min=1)
        of_k, of_q, of_sources, of_sinks = (x[:, :, None] for x in state.flows.unbind(2))

        def flow(one: Tensor, sums: Tensor) -> Tensor:
            return ((one + self.eps) * (sums + self.eps)).sum(dim=-1, keepdim=True)

        of_k, of_q = of_k + running_sum(phi_k), of_q + running_sum(phi_q)
        incoming, outgoing = flow(phi_q, of_k), flow(phi_k, of_q)
        of_sources = of_sources + running_sum(phi_k * (t / outgoing))
        of_sinks = of_sinks + running_sum(phi_q * (t / incoming))
        competition = self._competition(flow(phi_k, of_sinks) / t) * real
        in_all = state.competition[:, :, None] + running_sum(competition)
        given = at_least_single(v) * (t * competition / in_all.clamp(min=torch.finfo(t.dtype).tiny))
        how = {"initial_state": state.memory, "return_state": True}
        y, memory = linear_attention(phi_q, phi_k, given, causal=True, normalize=False, **how)
        flows = torch.stack([x[:, :, -1] for x in (of_k, of_q, of_sources, of_sinks)], dim=2)
        allotted = flow(phi_q, of_sources) / t
        after = Flows(flows, in_all[:, :, -1], memory, state.count + real.sum(dim=(1, 2, 3)))
        return (allotted.sigmoid() / incoming * y).to(v.dtype), after

    def _nothing(self, v: Float[Tensor, "b h n e"]) -> Flows:
        b, h, _, e = v.shape
        zeros = at_least_single(v).new_zeros
        return Flows(zeros(b, h, 4, self.head_dim), zeros(b, h, 1), zeros(b, h, self.head_dim, e), zeros(b))


def _features(
    x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None
) -> tuple[Float[Tensor, "b h n c"], Float[Tensor, "b 1 n 1"]]:
    """phi, which is 0 for padding, and 1 for each real token."""
    x = at_least_single(x)
    real = _real(x, mask)
    return x.sigmoid() * real, real


def _real(x: Float[Tensor, "b h n _"], mask: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b 1 n 1"]:
    """1 for each real token, in the dtype of x."""
    return x.new_ones(x.shape[0], 1, x.shape[2], 1) if mask is None else mask[:, None, :, None].to(x.dtype)


def _total(x: Float[Tensor, "b h n _"]) -> Float[Tensor, "b h 1 _"]:
    return x.sum(dim=2, keepdim=True)
