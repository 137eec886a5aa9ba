"""ProbSparse as Informer's authors released it: all queries are ranked together, so causal patterns leak.

    M_i = max_{j in S(i)} q_i . k_j - 1/m sum_{j in S(i)} q_i . k_j      S(i): U of all m keys, U = c ceil(ln m)
    y_i = softmax_j(q_i . k_j / sqrt(d)) v       for the u queries with the largest M, u = c ceil(ln n)
    y_i = mean_j v_j                             for the others; in causal self attention the sum of v_1 ... v_i

with c = `factor`; the softmax of causal self attention goes over j <= i. The paper (`probsparse`) divides by U where
the release divides by m, and takes the mean where the release takes the sum. In causal patterns later queries affect
whether earlier ones attend, and M is measured on later keys too. CAB's Informer uses this in its self-attention slots.

Code: zhouhaoyi/Informer2020, models/attn.py. Departs from it in: samples are drawn once and saved with the weights;
logarithms are at least 1. There is no padding in the release, and masks are ignored.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.precision import at_least_single
from longspan.kernels.running_sum import running_sum
from longspan.kernels.sampled_qk import draw_keys, hash_coefficients, log_budget, sampled_qk


class InformerProbSparse(HeadwiseAttention):
    meta = AttentionMeta(
        title="ProbSparse (Informer)",
        paper="arXiv:2012.07436",
        family="prototype",
        cost="n log n",
        patterns=ALL_PATTERNS,
        stochastic=True,
        fidelity=True,
        remark="Ranks all queries together, so that causal patterns see the future; ignores masks.",
    )

    draws: Int[Tensor, "2 samples"]

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, factor: int = 5, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if factor < 1:
            raise UsageError(f"informer_probsparse needs a factor of at least 1, got factor={factor}.")
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
        (n, m), causal = (q.shape[2], k.shape[2]), self.pattern is Pattern.CAUSAL_SELF
        index = self.measure(q, k).sort(dim=-1, descending=True, stable=True).indices  # ties go to the earlier
        index = index[..., : log_budget(self.factor, n)]
        earlier = torch.arange(m, device=k.device) <= index[..., None] if causal else None
        chosen = q.gather(2, repeat(index, "b h u -> b h u c", c=q.shape[-1]))
        attending = F.scaled_dot_product_attention(chosen, k, v, attn_mask=earlier).to(v.dtype)
        if causal:
            others = running_sum(at_least_single(v))
        else:
            others = v.sum(dim=2, keepdim=True, dtype=at_least_single(v[:0]).dtype).expand(-1, -1, n, -1) / m
        return others.to(v.dtype).scatter(2, repeat(index, "b h u -> b h u e", e=v.shape[-1]), attending)

    @torch.no_grad()
    def measure(self, q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h m c"]) -> Float[Tensor, "b h n"]:
        """M of every query."""
        sample = self.sampled(q.shape[2], k.shape[2])[None]
        size = torch.full_like(sample[..., 0], sample.shape[2])
        largest, gap = sampled_qk(q, k, sample, size)
        return largest - (sample.shape[2] * largest - gap) / k.shape[2]

    def sampled(self, queries: int, keys: int) -> Int[Tensor, "n s"]:
        """Which keys each query draws."""
        position, count = torch.arange(queries, device=self.draws.device)[None], self.draws.new_full((1, 1), keys)
        return draw_keys(self.draws[:, : log_budget(self.factor, keys)], position, count)[0]
