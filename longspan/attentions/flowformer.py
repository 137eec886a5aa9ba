"""Flowformer: linear attention as a flow from keys to queries, in which what one gives or takes is conserved.

    I_i = phi(q_i) . sum_j phi(k_j)              O_j = phi(k_j) . sum_i phi(q_i)              incoming, outgoing flow
    I'_i = phi(q_i) . sum_j phi(k_j) / O_j       O'_j = phi(k_j) . sum_i phi(q_i) / I_i       with the other one fixed
    y_i = sigmoid(I'_i n / m) / I_i phi(q_i) . sum_j phi(k_j) m softmax_j(O'_j) v_j^T

with phi = sigmoid, over the real queries i and keys j, n and m of them. Keys compete for what they give, queries are
allotted what they take. O' is clamped to +-`clamp`, and `eps` is added to both factors of every product that is a flow.
In causal self attention all sums run over the tokens up to t, and counts keep their scale,

    I'_t = phi(q_t) . sum_{j <= t} phi(k_j) (j / O_j) / t      O'_t = phi(k_t) . sum_{i <= t} phi(q_i) (i / I_i) / t
    y_t = sigmoid(I'_t) / I_t phi(q_t) . sum_{j <= t} phi(k_j) w_j v_j^T      w_j = j exp(O'_j) / sum_{l <= j} exp(O'_l)

so that the weight of a key is fixed when it arrives, and decoding keeps five sums. Causal cross attention is left out:
what a key gives would have to leave out later queries, for every query anew, which costs n m.

It has the parameters of softmax attention. Paper: arXiv:2202.06258. Departs from the paper in: padding is honoured.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import AttentionMeta, DecodeState, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.linear_attention import linear_attention
from longspan.kernels.precision import at_least_single, without_autocast
from longspan.kernels.running_sum import running_sum


@dataclass
class Flows(DecodeState):
    """Sums over the tokens so far."""

    flows: Float[Tensor, "b h 4 c"]  # of phi(k), phi(q), phi(k) j / O_j and phi(q) i / I_i
    competition: Float[Tensor, "b h 1"]  # of exp(O')
    memory: Float[Tensor, "b h c e"]  # of phi(k) w v^T
    count: Float[Tensor, " b"]


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
        with without_autocast(q):
            if self.pattern is Pattern.CAUSAL_SELF:
                return self._attend_causally(q, k, v, key_mask)[0]
            (phi_q, real_q), (phi_k, real_k) = _features(q, query_mask), _features(k, key_mask)
            n, m = (real.sum(dim=2, keepdim=True).clamp(min=1) for real in (real_q, real_k))
            incoming, outgoing = self._flow(phi_q, _total(phi_k)), self._flow(phi_k, _total(phi_q))
            allotted = self._flow(phi_q, _total(phi_k / outgoing)) * n / m
            competition = self._competition(phi_k, _total(phi_q / incoming)) * real_k
            share = m * competition / _total(competition).clamp(min=torch.finfo(m.dtype).tiny)
            y = linear_attention(*_rounded(phi_q, phi_k, v, share), normalize=False)
            return (allotted.sigmoid() / incoming * y).to(v.dtype)

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
            y, state = self._attend_causally(q, k, v, mask, self._nothing(v))
        assert state is not None
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
            y, after = self._attend_causally(q[:, :, None], k[:, :, None], v[:, :, None], None, state)
        assert after is not None
        return y[:, :, 0], after

    def _attend_causally(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h n c"],
        v: Float[Tensor, "b h n e"],
        mask: Bool[Tensor, "b n"] | None,
        state: Flows | None = None,
    ) -> tuple[Float[Tensor, "b h n e"], Flows | None]:
        """The outputs after the tokens of a state, and the state after these too if there was one."""
        if state is not None and v.shape[2] == 0:
            return v, state
        start = self._nothing(v) if state is None else state
        (phi_q, real), (phi_k, _) = _features(q, mask), _features(k, mask)
        t = (start.count[:, None, None, None] + real.cumsum(dim=2)).clamp(min=1)
        of_k, of_q, of_sources, of_sinks = (x[:, :, None] for x in start.flows.unbind(2))
        of_k, of_q = of_k + running_sum(phi_k), of_q + running_sum(phi_q)
        incoming, outgoing = self._flow(phi_q, of_k), self._flow(phi_k, of_q)
        of_sources = of_sources + running_sum(phi_k * (t / outgoing))
        of_sinks = of_sinks + running_sum(phi_q * (t / incoming))
        competition = self._competition(phi_k, of_sinks, t) * real
        in_all = start.competition[:, :, None] + running_sum(competition)
        share = t * competition / in_all.clamp(min=torch.finfo(t.dtype).tiny)
        features = _rounded(phi_q, phi_k, v, share)
        if state is None:
            y, after = linear_attention(*features, causal=True, normalize=False), None
        else:
            how = {"initial_state": state.memory, "return_state": True}
            y, memory = linear_attention(*features, causal=True, normalize=False, **how)
            flows = torch.stack([x[:, :, -1] for x in (of_k, of_q, of_sources, of_sinks)], dim=2)
            after = Flows(flows, in_all[:, :, -1], memory, state.count + real.sum(dim=(1, 2, 3)))
        allotted = self._flow(phi_q, of_sources) / t
        return (allotted.sigmoid() / incoming * y).to(v.dtype), after

    def _flow(self, one: Float[Tensor, "b h n c"], other: Float[Tensor, "b h #n c"]) -> Float[Tensor, "b h n 1"]:
        return ((one + self.eps) * (other + self.eps)).sum(dim=-1, keepdim=True)

    def _competition(
        self, phi_k: Float[Tensor, "b h m c"], sinks: Float[Tensor, "b h #m c"], t: Tensor | float = 1.0
    ) -> Float[Tensor, "b h m 1"]:
        """exp(O'), relative to the greatest it can be."""
        return ((self._flow(phi_k, sinks) / t).clamp(-self.clamp, self.clamp) - self.clamp).exp()

    def _nothing(self, v: Float[Tensor, "b h n e"]) -> Flows:
        b, h, _, e = v.shape
        zeros = at_least_single(v).new_zeros
        return Flows(zeros(b, h, 4, self.head_dim), zeros(b, h, 1), zeros(b, h, self.head_dim, e), zeros(b))


def _features(
    x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None
) -> tuple[Float[Tensor, "b h n c"], Float[Tensor, "b 1 n 1"]]:
    """phi, which is 0 for padding, and 1 for each real token."""
    x = at_least_single(x)
    real = x.new_ones(x.shape[0], 1, x.shape[2], 1) if mask is None else mask[:, None, :, None].to(x.dtype)
    return x.sigmoid() * real, real


def _total(x: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h 1 c"]:
    return x.sum(dim=2, keepdim=True)


def _rounded(phi_q: Tensor, phi_k: Tensor, v: Tensor, share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the kernel takes: all in float32 or better, or in bfloat16 beside values in bfloat16."""
    given = at_least_single(v) * share
    if v.dtype != torch.bfloat16:
        return phi_q, phi_k, given
    return phi_q.bfloat16(), phi_k.bfloat16(), given.bfloat16()
