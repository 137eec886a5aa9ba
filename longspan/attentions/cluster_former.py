"""Cluster-Former: tokens are sorted by the cluster of their hidden state, and attend within windows of that order.

    g_i = argmin_g |x_i - mu_g|      rank = the places of the real tokens, sorted by (g_i, i)
    y_i = sum_{j in A(i)} p_ij v_j      p_i = softmax_{j in A(i)}(q_i . k_j / sqrt(c))

    A(i) = the block of `window` - `overlap` ranks that holds i, and overlap / 2 ranks on either side of it
    A(i) = {j : g_i = g_j and |rank_i - rank_j| <= window / 2}         with `strict`, which keeps clusters apart
    A(i) = {j <= i : g_i = g_j and rank_i - rank_j < window}           as causal_self: the last of the own cluster

Whole tokens x are clustered, once for all heads. The centroids mu, `clusters` times d parameters, are drawn at
construction and trained on the k-means objective: while training, the mean of |x_i - mu_g|^2 / d over the real tokens,
from which only mu gets a gradient, is added to the loss. They have no other gradient, and do not change in evaluation.
That is the paper's cluster layer; between such layers the paper has sliding windows over the text itself, which is
`local(shape="blocks", overlap=...)`. The time is that of a sort, and linear otherwise. Paper: arXiv:2009.06097. Departs
from the paper in: the centroids, which it takes from k-means over a bank of recent states every few steps; by default
there are 64, or fewer where the maximum length has less than 16 tokens per cluster, while the paper has up to 512
(compared models have the same size); no question is prepended to each window; and the causal form, whose windows may
not depend on later tokens. There is no cross form: queries and keys share one order.
"""

from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, Attention, AttentionMeta, Pattern
from longspan.attentions.states import KeyValueCache
from longspan.core.errors import UsageError
from longspan.kernels.block_sparse import overlapping_blocks, sliding_window
from longspan.kernels.cache import append
from longspan.kernels.masked import attend_once
from longspan.kernels.packing import left_align, real
from longspan.kernels.precision import as_operand, at_least_single, without_autocast

CLUSTERS, SHARE = 64, 16  # at most this many clusters, and at least this many tokens for each


@dataclass
class ClusteredCache(KeyValueCache):
    """All keys, values and clusters so far."""

    cluster: Int[Tensor, "b 1 t 1"]


class ClusterFormer(Attention):
    meta = AttentionMeta(
        title="Cluster-Former",
        paper="arXiv:2009.06097",
        family="clustering",
        cost="n log n",
        patterns=SELF_PATTERNS,
        stochastic=True,
        length_bound=True,
        dropout="weights",
        auxiliary_loss=True,
        limit="clusters=1, window=8192, overlap=0",
        remark="CAB's table denies it causal self attention; over the last tokens of its own cluster it has one.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        clusters: int | None = None,
        window: int = 256,
        overlap: int = 64,
        strict: bool = False,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        if clusters is None:
            clusters = CLUSTERS if self.max_length is None else min(CLUSTERS, max(1, self.max_length // SHARE))
        if clusters < 1 or overlap < 0 or overlap % 2 or window <= overlap:
            raise UsageError(
                "cluster_former needs a cluster at least, and an even overlap that is smaller than the window, got "
                f"clusters={clusters}, window={window} and overlap={overlap}."
            )
        self.clusters, self.window, self.overlap, self.strict = clusters, window, overlap, strict
        self.query, self.key, self.value = (nn.Linear(dim, self.inner, bias=bias) for _ in "qkv")
        self.out = nn.Linear(self.inner, dim, bias=bias)
        self.centroids = nn.Parameter(torch.randn(clusters, dim))

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        x, mask = self._source(x, context, mask, context_mask)
        cluster = self.nearest(x)
        cluster = cluster if mask is None else cluster.masked_fill(~mask, self.clusters)  # padding sorts last
        cluster, order = cluster.sort(dim=1, stable=True)
        inverse = torch.zeros_like(order).scatter(1, order, torch.arange(x.shape[1], device=x.device).expand_as(order))
        z = x.take_along_dim(order[..., None], dim=1)
        q, k, v = (self._split(project(z)) for project in (self.query, self.key, self.value))
        y = self._within(q, k, v, cluster, None if mask is None else cluster < self.clusters)
        y = self._merge(y.take_along_dim(inverse[:, None, :, None], dim=2))
        if self.training and self.auxiliary_terms is not None:
            y = self.with_auxiliary(y, self._spread(z, cluster))
        return y

    @torch.no_grad()
    def nearest(self, x: Float[Tensor, "*b d"]) -> Int[Tensor, "*b"]:
        """The cluster of each token, found in single precision or better."""
        with without_autocast(x):
            x, mu = at_least_single(x), self.centroids.to(torch.promote_types(x.dtype, torch.float32))
            return (x @ mu.T - mu.square().sum(dim=-1) / 2).argmax(dim=-1)

    def _within(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h n c"],
        v: Float[Tensor, "b h n e"],
        cluster: Int[Tensor, "b n"],
        mask: Bool[Tensor, "b n"] | None,
    ) -> Float[Tensor, "b h n e"]:
        """Attention among sorted tokens."""
        options = {"key_mask": mask, "dropout": self.active_dropout}
        if not (self.pattern.causal or self.strict):
            return overlapping_blocks(
                q, k, v, block=self.window - self.overlap, overlap=self.overlap // 2, **options
            )  # fmt: skip
        left, right = (self.window - 1, 0) if self.pattern.causal else (self.window // 2, self.window // 2)
        rank = torch.arange(q.shape[2], device=q.device) + cluster * (self.window + 1)  # keeps clusters out of reach
        return sliding_window(q, k, v, left=left, right=right, positions=rank, **options)

    def _spread(self, z: Float[Tensor, "b n d"], cluster: Int[Tensor, "b n"]) -> Float[Tensor, ""]:
        """The objective of k-means: how far tokens lie from their centroids."""
        there = (cluster < self.clusters)[..., None]
        with without_autocast(z):
            apart = at_least_single(z.detach()) - self.centroids[cluster.clamp(max=self.clusters - 1)]
            return apart.masked_fill(~there, 0).square().sum() / (there.sum().clamp(min=1) * self.dim)

    def _state_after(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, *_: Any) -> ClusteredCache:
        k, v = self._split(self.key(x)), self._split(self.value(x))
        cluster = left_align(self.nearest(x), mask)[0]
        return ClusteredCache.of(k, v, mask, cluster=rearrange(cluster, "b n -> b 1 n 1"))

    def step(self, x_t: Float[Tensor, "b d"], state: ClusteredCache) -> tuple[Float[Tensor, "b d"], ClusteredCache]:
        self._needs_decoding()
        q, k, v = (project(x_t).unflatten(1, (self.heads, -1)) for project in (self.query, self.key, self.value))
        own = self.nearest(x_t)[:, None, None]
        state = state.plus(k, v, cluster=append(state.cluster, own, state.lengths))
        same = (state.cluster[..., 0] == own) & real(state.lengths, state.k.shape[2])[:, None]
        after = same.flip(2).cumsum(dim=2).flip(2)  # tokens of the cluster from each one to the end
        y = attend_once(q, state.k, state.v, same & (after <= self.window))
        return self.out(as_operand(y.flatten(1), self.out.weight)), state
