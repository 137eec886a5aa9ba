"""Routing Transformer: tokens attend within clusters, which are kept by an online k-means of queries and keys.

    s_ig = mu_g . q_i / |q_i|      Q_g, K_g = the w queries, and the w keys, with the largest s_ig      g = 1 ... G
    y_i = mean over the g with i in Q_g of sum_{j in K_g} p_ij v_j      p_i = softmax_{j in K_g}(q_i . k_j / sqrt(c))

with G = `clusters`, over the real tokens; a query in no cluster gives 0. That is the paper's form, and noncausal: which
tokens have the largest s depends on the whole sequence. Where the future must not matter (including later queries in
causal cross attention), a token goes only to its nearest cluster:

    causal_self     V(i) = the last w tokens up to i of i's cluster; one vector z is query and key, k_j = z_j / |z_j|,
                    and a token sees itself only where it sees no other
    causal_cross    V(i) = K_g of the context, g the nearest cluster of q_i

with w = `window` tokens, or `context_window` in a context. By default there are round(sqrt(L)) clusters of L / clusters
tokens, L the maximum length, or 16 of 256 if L is unknown; then time and memory are n sqrt(n). `memory` adds that many
learned keys and values to each cluster, and `eps` is added to the number of clusters of a query, as the PyTorch package
does (1e-5). The means mu, a set for each head, are drawn as unit vectors and, while training with `auxiliary_loss`,
moved by a thousandth towards the mean direction of the tokens nearest to them. That loss pulls these tokens towards
their mean: 1e-4 times the mean square of q / |q| - mu, over queries, keys and channels. Routes are computed in single
precision even under autocast. As causal_self it has a quarter fewer parameters than softmax attention, otherwise as
many (`memory` adds 2 clusters memory d). The release, whose causal form looks at the whole sequence to choose, is
`pypi_routing_transformer`. Paper: arXiv:2003.05997. Departs from the paper in: the causal forms; queries and keys are
normalised to choose clusters, but not in p, as in the PyTorch package; all heads are routed (the paper keeps half of
them local); no positions of its own; means are not initialised from the first batch.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import ALL_PATTERNS, Attention, AttentionMeta, Pattern
from longspan.attentions.states import DecodeState, KeyValueCache
from longspan.core.errors import UsageError
from longspan.kernels.cache import append
from longspan.kernels.lsh_attention import keys, lsh_attention
from longspan.kernels.masked import attend_once, masked_attention
from longspan.kernels.packing import Layout, left_align, real
from longspan.kernels.precision import as_operand, at_least_single, without_autocast

CLUSTERS, WINDOW = 16, 256  # when no maximum length is given
COMMITMENT, DECAY = 1e-4, 0.999  # weight of the auxiliary loss, decay of the means


@dataclass
class RoutedCache(KeyValueCache):
    """All keys, values and clusters so far."""

    cluster: Int[Tensor, "b h t 1"]


@dataclass
class Groups(DecodeState):
    """The keys and values of every cluster, and which of them are real."""

    k: Float[Tensor, "b h g w c"]
    v: Float[Tensor, "b h g w e"]
    visible: Bool[Tensor, "b h g w"]


class RoutingTransformer(Attention):
    meta = AttentionMeta(
        title="Routing Trans.",
        paper="arXiv:2003.05997",
        family="clustering",
        cost="n sqrt n",
        patterns=ALL_PATTERNS,
        stochastic=True,
        length_bound=True,
        dropout="weights",
        auxiliary_loss=True,
        remark="CAB denies it cross attention, which the authors' code routes for translation; causal codes leak.",
    )

    means: Float[Tensor, "h g c"]

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        clusters: int | None = None,
        window: int | None = None,
        context_window: int | None = None,
        memory: int = 0,
        eps: float = 0.0,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        sizes = {"clusters": clusters, "window": window, "context_window": context_window}
        if memory < 0 or eps < 0 or any(size is not None and size < 1 for size in sizes.values()):
            raise UsageError(
                "routing_transformer needs clusters and windows of at least 1, and a memory and eps of at least 0, got "
                f"{', '.join(f'{name}={size}' for name, size in sizes.items())}, memory={memory}, eps={eps}."
            )
        if memory and self.pattern.causal:
            raise UsageError(f"routing_transformer has no memory as {self.pattern}, got memory={memory}; leave it out.")
        longest = self.max_context if self.pattern is Pattern.CAUSAL_CROSS else self.max_length
        self.clusters = clusters or (CLUSTERS if longest is None else max(1, round(math.sqrt(longest))))
        self.window = window or self._share(self.max_length)
        self.context_window = context_window or self._share(self.max_context)
        self.context_window = self.context_window if self.pattern.cross else self.window
        self.eps, self.shared = eps, self.pattern is Pattern.CAUSAL_SELF
        self.query = nn.Linear(dim, self.inner, bias=bias)
        self.key = None if self.shared else nn.Linear(dim, self.inner, bias=bias)
        self.value = nn.Linear(dim, self.inner, bias=bias)
        self.out = nn.Linear(self.inner, dim, bias=bias)
        c = self.inner // heads
        self.register_buffer("means", F.normalize(torch.randn(heads, self.clusters, c), dim=-1))
        self.memory_k, self.memory_v = (
            nn.Parameter(torch.randn(heads, self.clusters, memory, c)) if memory else None for _ in "kv"
        )

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        source, key_mask = self._source(x, context, mask, context_mask)
        q, q_routes = self._project(self.query, x)
        k, k_routes = (q, q_routes) if self.key is None else self._project(self.key, source)
        v = self._split(self.value(source))
        y = self.attend(q, k, v, key_mask=key_mask, query_mask=mask, routes=(q_routes, k_routes))
        if self.training and self.auxiliary_terms is not None:
            tokens = [(q, q_routes, mask)] if self.shared else [(q, q_routes, mask), (k, k_routes, key_mask)]
            y = self.with_auxiliary(y, self._pull(tokens))
        return self._merge(y)

    def packed(self, x: Float[Tensor, "t d"], layout: Layout) -> Float[Tensor, "t d"]:
        if not self.shared or self.auxiliary_terms is not None:
            return super().packed(x, layout)
        z, routes = self._project(self.query, x[None])
        row = layout.index // layout.mask.shape[1]  # concatenated rows, each with its own clusters
        cluster = routes.argmax(dim=2) + self.clusters * row
        y = self._nearest(z, self._split(self.value(x[None])), cluster)
        return self._merge(y)[0]

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
        routes: tuple[Float[Tensor, "b h g n"], Float[Tensor, "b h g m"]] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        """The mechanism between the projections; `routes` are s of queries and keys before rounding."""
        q_routes, k_routes = (self.similarity(q), self.similarity(k)) if routes is None else routes
        if self.shared:
            cluster = q_routes.argmax(dim=2)
            cluster = cluster if key_mask is None else cluster.masked_fill(~key_mask[:, None], self.clusters)
            y = self._nearest(q, v, cluster)
        elif self.pattern is Pattern.CAUSAL_CROSS:
            y = self._read(q, q_routes.argmax(dim=2), self._groups(k, v, k_routes, key_mask))
        else:
            y = self._average(q, q_routes, query_mask, *self._chosen(k, v, k_routes, key_mask))
        return y if query_mask is None else y.masked_fill(~query_mask[:, None, :, None], 0)

    @torch.no_grad()
    def similarity(self, u: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h g n"]:
        """s of every token with every mean."""
        with without_autocast(u):
            u = F.normalize(at_least_single(u), dim=-1)
            return self.means.to(u.dtype) @ u.mT

    def _project(
        self, project: nn.Linear, x: Float[Tensor, "b n d"]
    ) -> tuple[Float[Tensor, "b h n c"], Float[Tensor, "b h g n"]]:
        """Queries or keys, and their s before any rounding."""
        u = self._split(project(x))
        if u.element_size() >= 4:
            return u, self.similarity(u)
        with torch.no_grad(), without_autocast(x):  # even a rounded norm would change the selection
            bias = None if project.bias is None else project.bias.float()
            return u, self.similarity(self._split(F.linear(x.float(), project.weight.float(), bias)))

    def _nearest(
        self, z: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n e"], cluster: Int[Tensor, "b h n"]
    ) -> Float[Tensor, "b h n e"]:
        """Each token attends to the last tokens of its own cluster."""
        how = {"left": self.window - 1, "right": 0, "scale": z.shape[-1] ** -0.5, "dropout": self.active_dropout}
        return lsh_attention(z, v, cluster[:, :, None].to(torch.int32), **how)

    def _groups(
        self,
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        routes: Float[Tensor, "b h g m"],
        mask: Bool[Tensor, "b m"] | None,
    ) -> Groups:
        """K_g of every cluster, for decoding."""
        k, v, visible = self._chosen(k, v, routes, mask)
        return Groups(k, v, torch.ones(k.shape[:-1], dtype=torch.bool, device=k.device) if visible is None else visible)

    def _chosen(
        self,
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        routes: Float[Tensor, "b h g m"],
        mask: Bool[Tensor, "b m"] | None,
    ) -> tuple[Float[Tensor, "b h g w c"], Float[Tensor, "b h g w e"], Bool[Tensor, "b h g w"] | None]:
        """Keys and values of K_g of every cluster, and which of them are real if not all are."""
        place, visible = self._largest(routes, self.context_window, mask)
        return self._take(k, place), self._take(v, place), visible

    def _largest(
        self, routes: Float[Tensor, "b h g n"], window: int, mask: Bool[Tensor, "b n"] | None
    ) -> tuple[Int[Tensor, "b h g w"], Bool[Tensor, "b h g w"] | None]:
        """The positions of the tokens with the largest s, in any order, and which of them are real if not all are."""
        window = window if window < routes.shape[3] else routes.shape[3]
        if mask is None:
            return routes.topk(window, sorted=False).indices, None
        largest, place = routes.masked_fill(~mask[:, None, None], -torch.inf).topk(window, sorted=False)
        return place, largest > -torch.inf

    def _take(self, x: Float[Tensor, "b h n c"], place: Int[Tensor, "b h g w"]) -> Float[Tensor, "b h g w c"]:
        flat = x.take_along_dim(place.flatten(2)[..., None], dim=2)
        return flat.unflatten(2, place.shape[2:])

    def _average(
        self,
        q: Float[Tensor, "b h n c"],
        routes: Float[Tensor, "b h g n"],
        mask: Bool[Tensor, "b n"] | None,
        k: Float[Tensor, "b h g u c"],
        v: Float[Tensor, "b h g u e"],
        visible: Bool[Tensor, "b h g u"] | None,
    ) -> Float[Tensor, "b h n e"]:
        """Q_g attends to K_g in each cluster; outputs back at their positions, averaged where a query is in several."""
        (b, h, n, _), e = q.shape, v.shape[-1]
        place, chosen = self._largest(routes, self.window, mask)
        if self.memory_k is not None and self.memory_v is not None:
            k, v = (
                torch.cat([repeat(own.to(u.dtype), "h g m c -> b h g m c", b=b), u], dim=3)
                for own, u in ((self.memory_k, k), (self.memory_v, v))
            )
            if visible is not None:  # an empty row has nothing to see
                always = visible.any(dim=3, keepdim=True).expand(-1, -1, -1, self.memory_k.shape[2])
                visible = torch.cat([always, visible], dim=3)
        q, k, v = (u.flatten(0, 1) for u in (self._take(q, place), k, v))
        if visible is None:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.active_dropout)
        else:
            y = masked_attention(q, k, v, visible.flatten(0, 1)[:, :, None], dropout=self.active_dropout)
        y = y.unflatten(0, (b, h)).to(v.dtype)
        y = y if chosen is None else y.masked_fill(~chosen[..., None], 0)
        index = place.flatten(2) + n * torch.arange(b * h, device=q.device).view(b, h, 1)
        total = added(y.reshape(-1, e), index.flatten(), b * h * n).view(b, h, n, e)
        ones = torch.ones_like(place) if chosen is None else chosen.long()
        count = place.new_zeros(b, h, n).scatter_add(2, place.flatten(2), ones.flatten(2))[..., None].to(total.dtype)
        return total / (count.clamp(min=0 if self.eps else 1) + self.eps)

    def _read(
        self, q: Float[Tensor, "b h n c"], cluster: Int[Tensor, "b h n"], groups: Groups
    ) -> Float[Tensor, "b h n e"]:
        """Every query attends to K_g of its cluster: queries are sorted by cluster, in blocks of one cluster each."""
        (b, h, n, _), g, w = q.shape, self.clusters, self.window if self.window < q.shape[2] else q.shape[2]
        ordered, order = cluster.sort(dim=2, stable=True)
        count = F.one_hot(cluster, g).sum(dim=2)
        blocks, first = -(-count // w), count.cumsum(dim=2) - count  # blocks per cluster, and where each begins
        begin = blocks.cumsum(dim=2) - blocks
        rank = torch.arange(n, device=q.device) - first.gather(2, ordered)
        slot = begin.gather(2, ordered) * w + rank  # slot of each query in sorted order
        room = -(-n // w) + g  # enough blocks for any distribution of the queries
        owner = torch.searchsorted(
            blocks.cumsum(dim=2), torch.arange(room, device=q.device).expand(b, h, -1).contiguous(), right=True
        )
        owner = owner.clamp(max=g - 1)
        inside = q.new_zeros(b, h, room * w, q.shape[3]).scatter(
            2, slot[..., None].expand_as(q), q.take_along_dim(order[..., None], 2)
        )
        taken = (u.take_along_dim(owner[..., None, None], dim=2) for u in (groups.k, groups.v))
        seen = groups.visible.take_along_dim(owner[..., None], dim=2)[:, :, :, None]
        parts = (u.flatten(0, 1) for u in (inside.unflatten(2, (room, w)), *taken, seen))
        y = masked_attention(*parts, dropout=self.active_dropout).unflatten(0, (b, h)).flatten(2, 3)
        y = y.take_along_dim(slot[..., None], dim=2)
        return torch.zeros_like(y).scatter(2, order[..., None].expand_as(y), y)

    def _pull(
        self, tokens: list[tuple[Float[Tensor, "b h _n c"], Float[Tensor, "b h g _n"], Bool[Tensor, "b _n"] | None]]
    ) -> Float[Tensor, ""]:
        """The auxiliary loss of these tokens, after which the means move towards them."""
        square, count, sums, counts = 0.0, 0.0, torch.zeros_like(self.means), self.means.new_zeros(self.means.shape[:2])
        for u, routes, mask in tokens:
            with without_autocast(u):
                u, near = F.normalize(at_least_single(u), dim=-1), F.one_hot(routes.argmax(dim=2), self.clusters)
                near = near if mask is None else near * mask[:, None, :, None]
                near = near.to(u.dtype)
                apart = (u - near @ self.means.to(u.dtype)) * near.sum(dim=-1, keepdim=True)
                square, count = square + apart.square().sum(), count + near.sum() * u.shape[-1]
                sums = sums + einsum(near, u.detach(), "b h n g, b h n c -> h g c").to(sums.dtype)
                counts = counts + near.sum(dim=(0, 2)).to(sums.dtype)
        with torch.no_grad():
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.all_reduce(sums)
                torch.distributed.all_reduce(counts)
            moved = DECAY * self.means + (1 - DECAY) * F.normalize(sums, dim=-1)
            self.means.copy_(torch.where(counts[..., None] > 0, moved, self.means))
        return COMMITMENT * square / torch.as_tensor(count).clamp(min=1)

    def prefill(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], DecodeState]:
        self._needs_decoding()
        y = self(x, context, mask=mask, context_mask=context_mask) if x.shape[1] else x
        source, key_mask = self._source(x, context, mask, context_mask)
        v = self._split(self.value(source))
        if self.key is not None:
            k, routes = self._project(self.key, source)
            return y, self._groups(k, v, routes, key_mask)
        z, routes = self._project(self.query, source)
        cluster = left_align(rearrange(routes.argmax(dim=2), "b h n -> b n h 1"), mask)[0].transpose(1, 2)
        return y, RoutedCache.of(keys(z, z.shape[-1] ** -0.5).to(v.dtype), v, mask, cluster=cluster)

    def step(self, x_t: Float[Tensor, "b d"], state: Any) -> tuple[Float[Tensor, "b d"], Any]:
        self._needs_decoding()
        q, routes = self._project(self.query, x_t[:, None])
        q, cluster = q[:, :, 0], routes.argmax(dim=2)  # [b h c], [b h 1]
        if isinstance(state, Groups):
            place = cluster[..., None, None]
            k, v = (u.take_along_dim(place, dim=2)[:, :, 0] for u in (state.k, state.v))
            y = attend_once(q, k, v, state.visible.take_along_dim(place[..., 0], dim=2)[:, :, 0])
            return self.out(as_operand(y.flatten(1), self.out.weight)), state
        v_t = self._split(self.value(x_t[:, None]))[:, :, 0]
        k_t = keys(q, q.shape[-1] ** -0.5).to(v_t.dtype)
        t, state = state.lengths, state.plus(k_t, v_t, cluster=append(state.cluster, cluster, state.lengths))
        past = real(t, state.k.shape[2])[:, None]
        same = (state.cluster[..., 0] == cluster) & past
        after = same.flip(2).cumsum(dim=2).flip(2)  # tokens of the cluster from each one to the end
        seen = same & (after < self.window)
        itself = real(state.lengths, state.k.shape[2])[:, None] & ~past
        seen = torch.where(seen.any(dim=2, keepdim=True), seen, itself)
        scores = at_least_single(einsum(q.to(state.k.dtype), state.k, "b h c, b h t c -> b h t"))
        p = scores.masked_fill(~seen, -torch.inf).softmax(dim=2)
        y = einsum(p.to(v_t.dtype), state.v, "b h t, b h t e -> b h e")
        return self.out(as_operand(y.flatten(1), self.out.weight)), state

    def _share(self, longest: int | None) -> int:
        """The tokens per cluster, if all have the same number."""
        return WINDOW if longest is None else max(1, -(-longest // self.clusters))


def added(rows: Float[Tensor, "t e"], index: Int[Tensor, " t"], n: int) -> Float[Tensor, "n e"]:
    """Rows added at their indices, deterministically: on a GPU that needs a sort, which torch does for `index_put`."""
    total = rows.new_zeros(n, rows.shape[1])
    if rows.device.type == "cuda":
        return total.index_put((index,), rows, accumulate=True)
    return total.index_add(0, index, rows)
