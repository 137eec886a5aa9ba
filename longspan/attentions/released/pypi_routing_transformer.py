"""Routing attention as the PyTorch package released it: the tokens of a cluster are chosen from the whole sequence.

    s_ig = mu_g . u_i / |u_i|      Q_g, K_g = the w queries, and the w keys, with the largest s_ig
    y_i = sum over the g with i in Q_g of sum_{j in K_g} p_ij v_j / (how many such g there are + 1e-5)

The paper's causal form (`routing_transformer`) must not look ahead; the release masks later keys only after Q_g and K_g
are chosen, so which earlier tokens are seen depends on later ones. Padded tokens may be chosen too, in place of real
ones, and are masked afterwards. With `shared` a key is q / |q|, and a query sees itself only with a score of -5e4.
`memory` learned keys and values are seen in every cluster; causally without `shared` there is at least one. A hidden
key has the lowest possible score, so a query that sees none attends evenly to all. The means are those of the buffer:
how the package updates them in training is left out. Code: routing-transformer 1.6.1, KmeansAttention. Departs from it
in: nothing else known, in evaluation.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.precision import at_least_single

ITSELF = -5e4  # the score of a query with its own key


class PyPIRoutingTransformer(HeadwiseAttention):
    meta = AttentionMeta(
        title="Routing Trans. (PyPI)",
        paper="arXiv:2003.05997",
        family="clustering",
        cost="n sqrt n",
        patterns=(Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_CROSS),
        stochastic=True,
        length_bound=True,
        dropout="weights",
        fidelity=True,
        remark="Causally, which earlier tokens are seen depends on later ones; padding may take the place of tokens.",
    )

    means: Float[Tensor, "h g c"]

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        clusters: int | None = None,
        window: int = 128,
        context_window: int | None = None,
        shared: bool = False,
        memory: int = 0,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if shared and self.pattern.cross:
            raise UsageError(f"Queries and keys of two sequences cannot be shared, got shared=True as {self.pattern}.")
        self.window, self.shared = window, shared
        self.key = self.query if shared else self.key
        self.context_window = (context_window or window) if self.pattern.cross else window
        longest = window if self.max_length is None else self.max_length
        clusters = math.ceil(longest / max(window, 1)) if clusters is None else clusters
        if min(window, self.context_window, clusters) < 1 or memory < 0:
            raise UsageError(
                "pypi_routing_transformer needs clusters and windows of at least 1 and a memory of at least 0, got "
                f"{clusters=}, {window=}, {context_window=}, {memory=}."
            )
        memory = max(memory, 1) if self.pattern.causal and not shared else memory
        self.register_buffer("means", F.normalize(torch.randn(heads, clusters, self.head_dim), dim=-1))
        self.memory_k, self.memory_v = (
            nn.Parameter(torch.randn(heads, clusters, memory, self.head_dim)) if memory else None for _ in "kv"
        )

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        b, h, n, c = q.shape
        k = F.normalize(k, dim=-1) if self.shared else k
        i, j = self._largest(q, self.window), self._largest(k, self.context_window)
        visible = torch.ones_like(i)[..., None] * torch.ones_like(j)[..., None, :] > 0
        for mask, place in ((query_mask, i[..., None]), (key_mask, j[..., None, :])):
            if mask is not None:
                rows = torch.arange(b, device=q.device).view(-1, 1, 1, 1, 1)
                visible = visible & mask[rows, place]
        if self.pattern.causal:
            visible = visible & (j[..., None, :] <= i[..., None])
        scores = at_least_single(_take(q, i) @ _take(k, j).mT) / c**0.5
        if self.shared:
            scores = scores.masked_fill(i[..., None] == j[..., None, :], ITSELF)
        scores, values = scores.masked_fill(~visible, torch.finfo(scores.dtype).min), _take(v, j)
        if self.memory_k is not None and self.memory_v is not None:
            own = at_least_single(_take(q, i) @ self.memory_k.to(q.dtype).mT) / c**0.5
            scores = torch.cat([own, scores], dim=-1)
            values = torch.cat([repeat(self.memory_v.to(v.dtype), "h g s e -> b h g s e", b=b), values], dim=3)
        y = F.dropout(scores.softmax(dim=-1), self.active_dropout).to(v.dtype) @ values
        index = i.flatten(2)[..., None]
        total = v.new_zeros(b, h, n, v.shape[-1]).scatter_add(2, index.expand(-1, -1, -1, v.shape[-1]), y.flatten(2, 3))
        count = v.new_zeros(b, h, n, 1).scatter_add(2, index, torch.ones_like(index, dtype=v.dtype))
        return total / (count + 1e-5)

    @torch.no_grad()
    def _largest(self, u: Float[Tensor, "b h n c"], window: int) -> Int[Tensor, "b h g w"]:
        """The positions of the tokens nearest to each mean."""
        routes = F.normalize(at_least_single(u), dim=-1) @ self.means.to(torch.promote_types(u.dtype, torch.float32)).mT
        return rearrange(routes.topk(min(window, u.shape[2]), dim=2).indices, "b h w g -> b h g w")


def _take(x: Float[Tensor, "b h n c"], place: Int[Tensor, "b h g w"]) -> Float[Tensor, "b h g w c"]:
    return x.take_along_dim(place.flatten(2)[..., None], dim=2).unflatten(2, place.shape[2:])
