"""ProbSparse attention (Informer): only queries that stand out attend; all others take the mean of the values.

    M_i = max_{j in S(i)} q_i . k_j - mean_{j in S(i)} q_i . k_j      S(i): U keys drawn at random, U = c ceil(ln m)
    y_i = softmax_j(q_i . k_j / sqrt(d)) v       for the u queries with the largest M, u = c ceil(ln n)
    y_i = mean_j v_j                             for the others

over the real keys j (j <= i in causal self attention), c = `factor`, n and m the number of real queries and keys of the
row, which also bound u and U. M is used only for selection and carries no gradient. A query with small M scores all
keys alike, so its softmax is nearly a mean anyway. With a `factor` as large as n this is softmax attention.

Ranking a query among all queries would let later queries affect earlier rows. In causal patterns query i is therefore
chosen if its M is among the c largest up to i, as long as fewer than c ceil(ln(i + 1)) have been chosen: no more than
the paper chooses from the first i + 1 rows, and about as many, since in random order row i is chosen with probability
c / (i + 1), which adds up to c ln n. S(i) is then drawn from the keys that i may see.

Samples are hashes of the query's position with random coefficients, saved with the weights and shared by rows and heads
(`kernels/sampled_qk`). The authors' code is `informer_probsparse`. Paper: arXiv:2012.07436. Departs from the paper in:
the selection in causal patterns; samples are drawn once; padding is neither drawn nor chosen nor seen; logarithms are
at least 1.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import DecodeState, KeyValueCache
from longspan.core.errors import UsageError
from longspan.kernels.masked import attend_once, masked_attention
from longspan.kernels.packing import real, real_first
from longspan.kernels.pooling import running_mean
from longspan.kernels.precision import at_least_single
from longspan.kernels.running_topk import running_topk
from longspan.kernels.sampled_qk import draw_keys, hash_coefficients, log_budget, log_budgets, sampled_qk


@dataclass
class RankedCache(KeyValueCache):
    """All keys and values, and what the selection of the next query depends on."""

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

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, factor: int = 5, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if factor < 1:
            raise UsageError(f"probsparse needs a factor of at least 1, got factor={factor}.")
        self.factor = factor
        self.register_buffer("draws", hash_coefficients(factor))

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
        attention = F.scaled_dot_product_attention if key_mask is None else masked_attention
        attending = attention(_rows(q, index), k, v, visible)  # pyright: ignore[reportArgumentType]
        if self.pattern is Pattern.CAUSAL_SELF:
            others = running_mean(v, mask=key_mask)
        else:
            others = _mean(v, key_mask).to(v.dtype).expand(-1, -1, q.shape[2], -1)
        attending = torch.where(chosen[..., None], attending.to(v.dtype), _rows(others, index))
        return others.scatter(2, repeat(index, "b h u -> b h u e", e=v.shape[-1]), attending)

    weights = HeadwiseAttention.weights_by_attending

    def prefill(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], DecodeState]:
        y, state = super().prefill(x, context, mask=mask, context_mask=context_mask)
        if isinstance(state, RankedCache) and x.shape[1]:  # ranking needs queries, which `begin` does not see
            source, key_mask = self._source(x, context, mask, context_mask)
            q, k = self._split(self.query(x)), self._split(self.key(source))
            measured = self.measure(q, k, key_mask=key_mask, query_mask=mask)
            largest = torch.cat([state.largest, measured], dim=-1).topk(self.factor, dim=-1).values
            chosen, queries = self._chosen(measured, mask).sum(dim=-1), _total(measured, mask).expand(len(x))
            state = replace(state, queries=queries, largest=largest, chosen=chosen)
        return y, state

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> RankedCache:
        none = torch.zeros(k.shape[:2], dtype=torch.long, device=k.device)
        largest = at_least_single(k).new_full((*k.shape[:2], self.factor), -torch.inf)
        return RankedCache.of(k, v, key_mask, queries=none[:, 0], largest=largest, chosen=none)

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e"] | None,
        state: RankedCache,
    ) -> tuple[Float[Tensor, "b h e"], RankedCache]:
        state = state if k is None or v is None else state.plus(k, v)
        measured = self._measure(q[:, :, None], state.k, state.queries[:, None], state.lengths[:, None])[:, :, 0]
        queries = state.queries + 1
        chosen = (measured > state.largest[..., -1]) & (state.chosen < log_budgets(self.factor, queries)[:, None])
        largest = torch.cat([state.largest, measured[..., None]], dim=-1).topk(self.factor, dim=-1).values
        keys = real(state.lengths, state.k.shape[2])
        attending = attend_once(q, state.k, state.v, keys[:, None])
        y = torch.where(chosen[..., None], attending, _mean(state.v, keys)[:, :, 0].to(attending.dtype))
        return y, replace(state, queries=queries, largest=largest, chosen=state.chosen + chosen)

    def measure(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n"]:
        """M of every query; -inf for padding and where there is nothing to sample."""
        counts = _counts(q, query_mask)
        keys = counts if self.pattern is Pattern.CAUSAL_SELF else _total(k, key_mask)[:, None]
        measured = self._measure(q, k, counts - 1, keys, key_mask)
        return measured if query_mask is None else measured.masked_fill(~query_mask[:, None], -torch.inf)

    @torch.no_grad()
    def _measure(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        position: Int[Tensor, "#b n"],
        keys: Int[Tensor, "#b #n"],
        key_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b h n"]:
        """M of queries at these positions, sampled from `keys` real keys."""
        sample = draw_keys(self.draws[:, : log_budget(self.factor, k.shape[2])], position, keys)
        if key_mask is not None:  # from positions among the real keys to positions among all
            order = real_first(key_mask)
            sample = order.gather(1, sample.flatten(1).expand(len(order), -1)).unflatten(1, sample.shape[1:])
        size = log_budgets(self.factor, keys).expand(sample.shape[:2])
        _, gap = sampled_qk(q, k, sample, size)
        # A mean of differences is exactly 0 when the same key is drawn every time, so rounding cannot break ties.
        return (gap / size[:, None].clamp(min=1)).masked_fill(size[:, None] == 0, -torch.inf)

    @torch.no_grad()
    def _choose(
        self, measured: Float[Tensor, "b h n"], query_mask: Bool[Tensor, "b n"] | None
    ) -> tuple[Int[Tensor, "b h u"], Bool[Tensor, "b h u"]]:
        """The positions of a fixed number of candidate queries, and which of those are chosen."""
        u = log_budget(self.factor, measured.shape[2])
        if self.pattern.causal:
            found = self._chosen(measured, query_mask).int().topk(u, dim=-1)
            return found.indices, found.values > 0
        index = measured.sort(dim=-1, descending=True, stable=True).indices[..., :u]  # ties go to the earlier
        budget = log_budgets(self.factor, _total(measured, query_mask))
        return index, (torch.arange(u, device=index.device) < budget[:, None, None]).expand_as(index)

    def _chosen(
        self, measured: Float[Tensor, "b h n"], query_mask: Bool[Tensor, "b n"] | None
    ) -> Bool[Tensor, "b h n"]:
        """The queries chosen in causal patterns."""
        return running_topk(measured, log_budgets(self.factor, _counts(measured, query_mask)), self.factor)


def _mean(v: Float[Tensor, "b h m e"], keys: Bool[Tensor, "b m"] | None) -> Float[Tensor, "b h 1 e"]:
    """The mean of the real values, 0 if there are none."""
    exact = torch.promote_types(v.dtype, torch.float32)
    if keys is None:
        return v.sum(dim=2, keepdim=True, dtype=exact) / max(v.shape[2], 1)
    total = v.masked_fill(~rearrange(keys, "b m -> b 1 m 1"), 0).sum(dim=2, keepdim=True, dtype=exact)
    return total / rearrange(keys.sum(dim=1).clamp(min=1), "b -> b 1 1 1")


def _counts(x: Float[Tensor, "b h n *c"], mask: Bool[Tensor, "b n"] | None) -> Int[Tensor, "#b n"]:
    """How many real tokens there are up to each one; a single row when nothing is padded."""
    return torch.arange(1, x.shape[2] + 1, device=x.device)[None] if mask is None else mask.cumsum(dim=1)


def _total(x: Float[Tensor, "b h n *c"], mask: Bool[Tensor, "b n"] | None) -> Int[Tensor, " #b"]:
    return torch.full((1,), x.shape[2], device=x.device) if mask is None else mask.sum(dim=1)


def _rows(x: Float[Tensor, "b h n c"], index: Int[Tensor, "b h u"]) -> Float[Tensor, "b h u c"]:
    return x.gather(2, repeat(index, "b h u -> b h u c", c=x.shape[-1]))
