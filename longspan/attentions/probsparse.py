"""ProbSparse attention (Informer): only queries that stand out attend; all others take the mean of the values.

    M_i = max_{j in S(i)} q_i . k_j - mean_{j in S(i)} q_i . k_j      S(i): U keys drawn at random, U = c ceil(ln m)
    y_i = softmax_j(q_i . k_j / sqrt(d)) v       for the u queries with the largest M, u = c ceil(ln n)
    y_i = mean_j v_j                             for the others

over the real keys j (j <= i in causal self attention), c = `factor`, n and m the real queries and keys of the row, and
no more of either than there are. M only chooses and carries no gradient. A query whose M is small agrees with all keys
alike, so that its softmax is nearly a mean anyway. A `factor` as large as n is softmax attention.

To rank a query among all lets later queries decide about earlier rows. In causal patterns query i is therefore chosen
when its M is among the c largest up to i, as long as fewer than c ceil(ln(i + 1)) have been chosen: no more than the
paper chooses from the first i + 1 rows, and about as many, since in random order that happens to row i with probability
c / (i + 1), which adds up to c ln n. S(i) is then drawn from the keys that i may see.

The draw of sample s for query i is a hash of i, (a_s i + b_s) mod p, brought to the number of keys; a and b are random,
saved with the weights, and shared by rows and heads. So a draw is as long as it has to be and decoding repeats it.

`released=True` computes what the authors' code does: it divides the sum of the sample by m instead of U, ranks all
queries on samples of all keys in every pattern, and in causal self attention gives the others the sum, not the mean, of
the values so far. That is a fidelity setting: causal patterns leak the future with it. Paper: arXiv:2012.07436. Departs
from the paper in: the choice in causal patterns; samples are drawn once; padding is neither drawn nor chosen nor seen;
a logarithm counts as at least 1.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, DecodeState, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.cache import append
from longspan.kernels.masked import attend_once, masked_attention
from longspan.kernels.packing import left_align, real
from longspan.kernels.pooling import running_mean
from longspan.kernels.precision import at_least_single
from longspan.kernels.running_sum import running_sum
from longspan.kernels.running_topk import records
from longspan.kernels.sampled_qk import sampled_qk

PRIME = 2**31 - 1
POWERS = tuple(int(math.exp(power)) for power in range(22))  # of e, rounded down, while below the prime


@dataclass
class Chosen(DecodeState):
    """All keys and values, left-aligned, and what decides about the next query."""

    k: Float[Tensor, "b h t c"]
    v: Float[Tensor, "b h t e"]
    keys: Int[Tensor, " b"]
    queries: Int[Tensor, " b"]
    largest: Float[Tensor, "b h factor"]  # the largest M so far, in descending order
    chosen: Int[Tensor, "b h"]


class ProbSparse(HeadwiseAttention):
    meta = AttentionMeta(
        title="ProbSparse",
        paper="arXiv:2012.07436",
        family="prototype",
        cost="n log n",
        patterns=ALL_PATTERNS,
        stochastic=True,
        limit="factor=4096",
        remark="CAB's table allows noncausal self attention alone; causal patterns hold with a choice from the past.",
    )

    draws: Int[Tensor, "2 samples"]

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        factor: int = 5,
        released: bool = False,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if factor < 1:
            raise UsageError(f"probsparse needs a factor of at least 1, got factor={factor}.")
        self.factor, self.released = factor, released
        self.register_buffer("draws", torch.randint(1, PRIME, (2, factor * len(POWERS))))

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        query_mask = query_mask if self.pattern.cross else key_mask
        measured = self.measure(q, k, key_mask=key_mask, query_mask=query_mask)
        index, chosen = self._choose(measured, query_mask)
        visible = None if key_mask is None else rearrange(key_mask, "b m -> b 1 1 m")
        if self.pattern is Pattern.CAUSAL_SELF:
            earlier = torch.arange(k.shape[2], dtype=torch.int32, device=k.device) <= index[..., None].int()
            visible = earlier if visible is None else visible & earlier
        attending = _attention(_rows(q, index), k, v, visible, all_see=key_mask is None)
        others = self._others(v, key_mask, q.shape[2]).to(v.dtype)
        attending = torch.where(chosen[..., None], attending.to(v.dtype), _rows(others, index))
        return others.scatter(2, repeat(index, "b h u -> b h u e", e=v.shape[-1]), attending)

    def weights(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b h n m"]:
        unit = torch.eye(k.shape[2], dtype=k.dtype, device=k.device)
        return self.attend(q, k, unit.expand(*k.shape[:2], -1, -1), key_mask=key_mask)

    def prefill(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], DecodeState]:
        y, state = super().prefill(x, context, mask=mask, context_mask=context_mask)
        if isinstance(state, Chosen) and x.shape[1]:  # what keys and values cannot tell
            source, key_mask = self._source(x, context, mask, context_mask)
            q, k = self._split(self.query(x)), self._split(self.key(source))
            measured = self.measure(q, k, key_mask=key_mask, query_mask=mask)
            largest = torch.cat([state.largest, measured], dim=-1).topk(self.factor, dim=-1).values
            chosen, queries = self._records(measured, mask).sum(dim=-1), _total(measured, mask).expand(len(x))
            state = replace(state, queries=queries, largest=largest, chosen=chosen)
        return y, state

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Chosen | None:
        if self.released:  # it ranks queries that are not there yet
            return None
        (k, keys), (v, _) = (left_align(rearrange(u, "b h m c -> b m h c"), key_mask) for u in (k, v))
        k, v = (rearrange(u, "b m h c -> b h m c") for u in (k, v))
        largest = at_least_single(k).new_full((*k.shape[:2], self.factor), -torch.inf)
        return Chosen(k, v, keys, torch.zeros_like(keys), largest, keys.new_zeros(k.shape[:2]))

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e"] | None,
        state: Chosen,
    ) -> tuple[Float[Tensor, "b h e"], Chosen]:
        if k is not None and v is not None:
            k, v = append(state.k, k, state.keys), append(state.v, v, state.keys)
            state = replace(state, k=k, v=v, keys=state.keys + 1)
        measured = self._measure_one(q, state)
        queries = state.queries + 1
        record = (measured > state.largest[..., -1]) & (state.chosen < self._budgets(queries)[:, None])
        largest = torch.cat([state.largest, measured[..., None]], dim=-1).topk(self.factor, dim=-1).values
        keys = real(state.keys, state.k.shape[2])
        attending = attend_once(q, state.k, state.v, keys[:, None])
        y = torch.where(record[..., None], attending, _mean(state.v, keys)[:, :, 0].to(attending.dtype))
        return y, replace(state, queries=queries, largest=largest, chosen=state.chosen + record)

    @torch.no_grad()
    def measure(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n"]:
        """M of every query, on its own sample of keys; -inf for padding and where there is nothing to sample."""
        place, count = _counts(q, query_mask) - 1, _total(k, key_mask)[:, None]
        if self.pattern is Pattern.CAUSAL_SELF and not self.released:
            count = place + 1
        sample = self.sampled(place, count, self._budget(k.shape[2]))
        if key_mask is not None:  # from places among the real keys to places among all
            order = key_mask.logical_not().long().argsort(dim=1, stable=True)
            sample = order.gather(1, sample.flatten(1).expand(len(order), -1)).unflatten(1, sample.shape[1:])
        measured = self._measured(q, k, sample, count)
        return measured if query_mask is None else measured.masked_fill(~query_mask[:, None], -torch.inf)

    @torch.no_grad()
    def _measure_one(self, q: Float[Tensor, "b h c"], state: Chosen) -> Float[Tensor, "b h"]:
        count = state.keys[:, None]
        sample = self.sampled(state.queries[:, None], count, self._budget(state.k.shape[2]))
        return self._measured(q[:, :, None], state.k, sample, count)[:, :, 0]

    def sampled(self, place: Int[Tensor, "#b n"], count: Int[Tensor, "#b #n"], samples: int) -> Int[Tensor, "_ n s"]:
        """Which of `count` keys each query draws, with replacement; the same ones whatever stands after them."""
        a, b = self.draws[:, :samples]
        return ((place[..., None] + 1) * a + b) % PRIME * count[..., None] // PRIME

    def _measured(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        sample: Int[Tensor, "#b n s"],
        count: Int[Tensor, "#b #n"],
    ) -> Float[Tensor, "b h n"]:
        size = self._budgets(count).expand(sample.shape[:2])
        largest, apart = sampled_qk(q, k, sample, size)
        size = size[:, None]
        if self.released:
            return largest - (size * largest - apart) / count[:, None]
        # A mean of differences is exactly 0 when one key was drawn every time: no rounding can decide a tie.
        return (apart / size.clamp(min=1)).masked_fill(size == 0, -torch.inf)

    @torch.no_grad()
    def _choose(
        self, measured: Float[Tensor, "b h n"], query_mask: Bool[Tensor, "b n"] | None
    ) -> tuple[Int[Tensor, "b h u"], Bool[Tensor, "b h u"]]:
        """The places of the queries that attend, and which of them are chosen and do not only fill up the row."""
        u = self._budget(measured.shape[2])
        if self.pattern.causal and not self.released:
            found = self._records(measured, query_mask).int().topk(u, dim=-1)
            return found.indices, found.values > 0
        index = measured.sort(dim=-1, descending=True, stable=True).indices[..., :u]  # of equal ones the earlier
        budget = self._budgets(_total(measured, query_mask))
        return index, (torch.arange(u, device=index.device) < budget[:, None, None]).expand_as(index)

    def _records(
        self, measured: Float[Tensor, "b h n"], query_mask: Bool[Tensor, "b n"] | None
    ) -> Bool[Tensor, "b h n"]:
        """Queries among the `factor` largest so far, while the budget lasts."""
        return records(measured, self._budgets(_counts(measured, query_mask)), self.factor)

    def _others(
        self, v: Float[Tensor, "b h m e"], key_mask: Bool[Tensor, "b m"] | None, n: int
    ) -> Float[Tensor, "b h n e"]:
        """What a query gets that is not chosen."""
        if self.pattern is not Pattern.CAUSAL_SELF:
            return _mean(v, key_mask).expand(-1, -1, n, -1)
        if not self.released:
            return running_mean(v, mask=key_mask)
        v = v if key_mask is None else v.masked_fill(~rearrange(key_mask, "b m -> b 1 m 1"), 0)
        return running_sum(at_least_single(v))

    def _budget(self, count: int) -> int:
        """factor ceil(ln count), with a logarithm of at least 1 and never more than all."""
        return min(self.factor * max(1, sum(count > power for power in POWERS)), count)

    def _budgets(self, count: Int[Tensor, "*b"]) -> Int[Tensor, "*b"]:
        steps = count.clamp(min=1).double().log().ceil().long().clamp(min=1)
        return torch.minimum(self.factor * steps, count)


def _attention(
    q: Float[Tensor, "b h u c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    visible: Bool[Tensor, "b #h #u m"] | None,
    all_see: bool,
) -> Float[Tensor, "b h u e"]:
    """Exact attention; `all_see` says that no query sees nothing."""
    if visible is None or all_see:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    return masked_attention(q, k, v, visible)


def _mean(v: Float[Tensor, "b h m e"], keys: Bool[Tensor, "b m"] | None) -> Float[Tensor, "b h 1 e"]:
    """The mean of the real values, 0 without any."""
    exact = torch.promote_types(v.dtype, torch.float32)
    if keys is None:
        return v.sum(dim=2, keepdim=True, dtype=exact) / max(v.shape[2], 1)
    total = v.masked_fill(~rearrange(keys, "b m -> b 1 m 1"), 0).sum(dim=2, keepdim=True, dtype=exact)
    return total / rearrange(keys.sum(dim=1).clamp(min=1), "b -> b 1 1 1")


def _counts(x: Float[Tensor, "b h n *c"], mask: Bool[Tensor, "b n"] | None) -> Int[Tensor, "#b n"]:
    """How many real tokens there are up to each: one row for all where none is padded."""
    return torch.arange(1, x.shape[2] + 1, device=x.device)[None] if mask is None else mask.cumsum(dim=1)


def _total(x: Float[Tensor, "b h n *c"], mask: Bool[Tensor, "b n"] | None) -> Int[Tensor, " #b"]:
    return torch.full((1,), x.shape[2], device=x.device) if mask is None else mask.sum(dim=1)


def _rows(x: Float[Tensor, "b h n c"], index: Int[Tensor, "b h u"]) -> Float[Tensor, "b h u c"]:
    return x.gather(2, repeat(index, "b h u -> b h u c", c=x.shape[-1]))
