"""Scatterbrain: sparse plus low-rank attention, with exact weights for a few pairs and random features for the others.

    y_i = sum_j w_ij v_j / sum_j w_ij      w_ij = exp(q_i . k_j / sqrt(c)) for (i, j) in S, else phi(q_i) . phi(k_j)
    phi(x) = exp([W x', -W x'] - |x'|^2 / 2) / sqrt(r)    x' = x / c^(1/4)    E[phi(q) . phi(k)] = exp(q . k / sqrt(c))

over the real keys j, in causal self attention over j <= i. So w is unbiased, and exact on the support S:

    support = "window"   S = {i - w // 2 <= j < i - w // 2 + w}, or the last w up to i when causal (SB-local)
    support = "lsh"      S = {q_i and k_j have the same hash, and k_j is one of the first w keys that have it}

with w = `window`, counted in real tokens. Self attention uses windows by default. Cross attention, where queries have
no position among the keys, uses the hash of one random rotation, argmax [x R, -x R], with `buckets` buckets. As each
token is hashed by itself, a query in causal cross attention depends on no other; causal self attention has no lsh,
since its sums would have to leave out tokens scattered over the past. `features` is r, an even number, floor(c ln c)
unless given; its r / 2 rows W are orthogonal in blocks of c. `scale` replaces 1 / sqrt(c). W and R are drawn once and
saved with the weights. Attention dropout acts on the exact weights. Exponents are kept as logarithms until the largest
is subtracted, and features on S are left out of the sums instead of being subtracted, so nothing overflows, cancels or
sees later keys. On a GPU windows use the kernels of their two halves. There are no extra parameters.

Paper: arXiv:2110.15343. Departs from the paper in: one hash with buckets of any size instead of several balanced ones,
since balancing makes each query depend on all others; and the release's windows, which in its causal form look ahead.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import DecodeState, KeyValueCache, KeyValueRing
from longspan.core.errors import UsageError
from longspan.kernels.favor import beside_window, draw_projection, log_features
from longspan.kernels.favor.corrected import added, corrected, sums_after, sums_before
from longspan.kernels.favor.reference import mask_logs, summarize, update_summary
from longspan.kernels.lsh_attention.blocks import bucket_blocks, in_slots
from longspan.kernels.lsh_attention.hash import hash_factors, hash_vectors
from longspan.kernels.packing import fill_up, real_first
from longspan.kernels.precision import without_autocast

TILE, WIDE = 64, 64  # queries per key block; twice as many with more features, as their sums are larger


@dataclass
class WindowAndPast(KeyValueRing):
    """The last keys and values, and the sums of features of all before them."""

    sums: Float[Tensor, "b h r e_plus_1"]
    log_scale: Float[Tensor, "b h r"]


@dataclass
class Buckets(DecodeState):
    """For each bucket its first block of keys and values, which of these are real, and sums over all other keys."""

    k: Float[Tensor, "b h g s c"]
    v: Float[Tensor, "b h g s e"]
    visible: Bool[Tensor, "b h g s"]
    sums: Float[Tensor, "b h g r e_plus_1"]
    log_scale: Float[Tensor, "b h g r"]

    def of(self, bucket: Int[Tensor, "b h n"]) -> "Buckets":
        """The entries of these buckets."""
        index = {name: bucket.view(*bucket.shape, *[1] * (u.ndim - 3)) for name, u in self._tensors().items()}
        return replace(self, **{name: u.take_along_dim(index[name], dim=2) for name, u in self._tensors().items()})


class Scatterbrain(HeadwiseAttention):
    meta = AttentionMeta(
        title="Scatterbrain",
        paper="arXiv:2110.15343",
        family="kernel",
        cost="n",
        patterns=ALL_PATTERNS,
        stochastic=True,
        dropout="weights",
        limit="window=4096, buckets=1",
        remark="Cross attention has buckets in place of windows; the balanced clusters of the release leak the future.",
    )

    projection: Float[Tensor, "half_r c"]
    rotations: Float[Tensor, "h c 1 half"]

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        window: int = 64,
        features: int | None = None,
        support: Literal["window", "lsh"] | None = None,
        buckets: int = 32,
        scale: float | None = None,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if features is None:
            features = max(2, int(self.head_dim * math.log(self.head_dim)) // 2 * 2)
        if features < 2 or features % 2:
            raise UsageError(f"Features are pairs of opposite rows, got features={features}; choose an even number.")
        if window < 1:
            raise UsageError(f"scatterbrain needs a window of at least 1 key, got window={window}.")
        if scale is not None and scale <= 0:
            raise UsageError(f"Features exist for a positive scale, got scale={scale}.")
        if support == "window" and self.pattern.cross:
            raise UsageError(f"A query as {self.pattern} has no place among the keys; take support='lsh'.")
        if support == "lsh" and self.pattern is Pattern.CAUSAL_SELF:
            raise UsageError("As causal_self sums go in the order of tokens, got support='lsh'; take 'window'.")
        self.support = support or ("lsh" if self.pattern.cross else "window")
        self.window, self.buckets, self.scale = window, buckets, scale
        self.tile = TILE if features <= WIDE else 2 * TILE
        self.register_buffer("projection", draw_projection(features // 2, self.head_dim))
        if self.support == "lsh":
            self.factors = (1,) if buckets == 1 else hash_factors(buckets)
            self.register_buffer("rotations", torch.randn(heads, self.head_dim, 1, sum(self.factors) // 2))

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
            q, k = self._scaled(q), self._scaled(k)
            if self.support == "lsh":
                return self._by_bucket(q, self._in_buckets(k, v, key_mask)).to(v.dtype)
            if key_mask is None:
                return self._by_window(q, k, v, None).to(v.dtype)
            order = real_first(key_mask)  # so that windows count real tokens
            q, k, v = (u.take_along_dim(order[:, None, :, None], dim=2) for u in (q, k, v))
            y = self._by_window(q, k, v, key_mask.take_along_dim(order, dim=1)).to(v.dtype)
            y = torch.zeros_like(y).scatter(2, order[:, None, :, None].expand_as(y), y)
            return y.masked_fill(~key_mask[:, None, :, None], 0)  # padding was moved last and sees all tokens

    weights = HeadwiseAttention.weights_by_attending

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> DecodeState:
        with without_autocast(k):
            k = self._scaled(k)
            if self.support == "lsh":
                return self._in_buckets(k, v, key_mask)
            cache, ring = KeyValueCache.of(k, v, key_mask), KeyValueRing.of(k, v, key_mask, self.window)
            past = torch.arange(k.shape[2], device=k.device) < (cache.lengths - self.window)[:, None]
            sums = summarize(mask_logs(self.log_features(cache.k), past), cache.v)
            return WindowAndPast(ring.k, ring.v, ring.lengths, *sums)

    def advance(
        self, q: Float[Tensor, "b h c"], k: Float[Tensor, "b h c"] | None, v: Float[Tensor, "b h e"] | None, state: Any
    ) -> tuple[Float[Tensor, "b h e"], DecodeState]:
        with without_autocast(q):
            query = self._scaled(q)[:, :, None]
            if k is None or v is None:
                return self._read(query[:, :, None], state.of(self._hash(query)))[:, :, 0, 0].to(q.dtype), state
            slot = (state.lengths % self.window)[:, None, None, None]
            k_old, v_old = (u.take_along_dim(slot, dim=2)[:, :, 0] for u in (state.k, state.v))
            missing = (state.lengths < self.window)[:, None, None]  # no token leaves the window yet
            log_k = self.log_features(k_old).masked_fill(missing, -torch.inf)
            sums, log_scale = update_summary(state.sums, state.log_scale, log_k, v_old)
            state = state.plus(self._scaled(k), v, sums=sums, log_scale=log_scale)
            near, logs = (state.positions >= 0)[:, None, None], (self.log_features(query), self.log_features(state.k))
            y = corrected(query, state.k, state.v, *logs, sums, log_scale, near=near, visible=near)
            return y[:, :, 0].to(q.dtype), state

    def log_features(self, x: Float[Tensor, "b h *n c"]) -> Float[Tensor, "b h *n r"]:
        """The logarithm of phi, without the constant 1 / sqrt(r)."""
        return log_features(x, torch.cat([self.projection, -self.projection]))

    def _scaled(self, x: Float[Tensor, "b h *n c"]) -> Float[Tensor, "b h *n c"]:
        """Queries or keys, scaled so that dividing their product by sqrt(c) as usual gives `scale`."""
        return x if self.scale is None else x * (self.scale * x.shape[-1] ** 0.5) ** 0.5

    def _by_window(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h n c"],
        v: Float[Tensor, "b h n e"],
        mask: Bool[Tensor, "b n"] | None,
    ) -> Float[Tensor, "b h n e"]:
        """Tiles of queries, each with the keys from `left` before it to `right` after it."""
        n, causal = q.shape[2], self.pattern.causal
        left, right = (self.window - 1, 0) if causal else (self.window // 2, self.window - 1 - self.window // 2)
        # comparisons, since min() would stay symbolic in a graph for dynamic lengths
        left, right = (side if side < n else n - 1 for side in (left, right))
        if beside_window.is_faster(q, k, v, self.active_dropout):
            sides = {"left": left, "right": None if causal else right}
            projection = torch.cat([self.projection, -self.projection])
            return beside_window.window_beside_favor(q, k, v, projection, **sides, key_mask=mask)
        tile = max(self.tile, (left + right) // 2)
        tile = tile if tile < n else n
        tiles = -(-n // tile)
        edges, span = (left, tiles * tile - n + right), left + tile + right
        log_k = F.pad(mask_logs(self.log_features(k), mask), (0, 0, *edges), value=-torch.inf)
        k, v = (F.pad(u, (0, 0, *edges)) for u in (k, v))

        sums = sums_before(*(u[:, :, : tiles * tile].unflatten(2, (tiles, tile)) for u in (log_k, v)))
        if not causal:
            after = (u[:, :, left + right :].unflatten(2, (tiles, tile)) for u in (log_k, v))
            sums = added(sums, sums_after(*after))
        i, j = torch.arange(tile, device=q.device)[:, None], torch.arange(-left, tile + right, device=q.device)
        real = q.new_ones(1, n, dtype=torch.bool) if mask is None else mask
        visible = rearrange(F.pad(real, edges, value=False).unfold(1, span, tile), "b g s -> b 1 g 1 s")
        visible = visible & (j <= i) if causal else visible
        near = (j >= i - left) & (j <= i + right)
        q, k, v = fill_up(q, tiles * tile).unflatten(2, (tiles, tile)), *(u.unfold(2, span, tile).mT for u in (k, v))
        logs = self.log_features(q), log_k.unfold(2, span, tile).mT
        y = corrected(q, k, v, *logs, *sums, near=near, visible=visible, dropout=self.active_dropout)
        return y.flatten(2, 3)[:, :, :n]

    def _hash(self, x: Float[Tensor, "b h n c"]) -> Int[Tensor, "b h n"]:
        if self.buckets == 1:
            return torch.zeros(x.shape[:3], dtype=torch.long, device=x.device)
        bucket = hash_vectors(rearrange(x, "b h n c -> b n h c"), self.rotations, self.factors)
        return rearrange(bucket, "b n h 1 -> b h n")

    def _in_buckets(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], mask: Bool[Tensor, "b m"] | None
    ) -> Buckets:
        """The keys in blocks of one bucket each, and padding in the blocks of an extra bucket that is never read."""
        m, bucket = k.shape[2], self._hash(k)
        bucket = bucket if mask is None else bucket.masked_fill(~mask[:, None], self.buckets)
        size = max(self.tile, self.window)
        size = size if size < m else m
        slot, first, owner = bucket_blocks(bucket, self.buckets + 1, size)
        first, blocks = first[:, :, : self.buckets], owner.shape[2]
        log_k = in_slots(mask_logs(self.log_features(k), mask), slot, blocks, size, fill=-torch.inf)
        k, v = (in_slots(u, slot, blocks, size) for u in (k, v))
        sums = added(sums_before(log_k, v), sums_after(log_k, v))
        return Buckets(k, v, log_k[..., 0] > -torch.inf, *sums).of(first)

    def _by_bucket(self, q: Float[Tensor, "b h n c"], keys: Buckets) -> Float[Tensor, "b h n e"]:
        """Tiles of queries of one bucket each, with the block of that bucket."""
        tile = self.tile if self.tile < q.shape[2] else q.shape[2]
        slot, _, owner = bucket_blocks(self._hash(q), self.buckets, tile)
        y = self._read(in_slots(q, slot, owner.shape[2], tile), keys.of(owner))
        return y.flatten(2, 3).take_along_dim(slot[..., None], dim=2)

    def _read(self, q: Float[Tensor, "b h g t c"], keys: Buckets) -> Float[Tensor, "b h g t e"]:
        near = torch.arange(keys.k.shape[3], device=q.device) < self.window
        logs = self.log_features(q), self.log_features(keys.k)
        how = {"near": near, "visible": keys.visible[:, :, :, None], "dropout": self.active_dropout}
        return corrected(q, keys.k, keys.v, *logs, keys.sums, keys.log_scale, **how)
