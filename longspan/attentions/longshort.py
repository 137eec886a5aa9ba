"""Long-short attention: the near tokens one by one and all others in a few summaries, under one softmax.

    y_i = sum_{j in N(i)} p_ij v_j + sum_{r in R(i)} p_ir v'_r      p_i = softmax_{j, r}(q_i . (k_j, k'_r) / sqrt(c))

Non-causal, with w = `window` (8 unless given):

    N(i)      the block of w tokens that holds i, and w // 2 (at least 1) tokens on either side of the block
    k', v'    LN'(sum_j P_jr k_j), and v alike, for P_r = softmax_j(x_j W_r), one for each of `landmarks` and each head
    R(i)      all of them
    k, v      LN(x W_k), LN(x W_v), also where they are summed

Causal, with w = `window` (512 unless given):

    N(i)      i and the w - 1 tokens before it
    k', v'    the same for each `chunk` of tokens, with a softmax over the chunk and `rank` summaries
    R(i)      the summaries of the chunks before that of i
    k, v      LN(x W_k), LN(x W_v) in N(i), and without LN where they are summed

LN and LN' are two layer norms over all heads together, each for keys and values alike. A causal window shorter than a
chunk leaves tokens that nobody sees. `conv` > 0 adds to the non-causal output a depth-wise convolution of v with that
many taps, one filter per head, zero at the start. Padding is no token: it is neither seen nor summed, and in the causal
form it takes no place either.

`relative` adds to the causal scores what Transformer-XL does, with q' = q / sqrt(c) and a sinusoid s of the distance:

    near  u . k_j + (q' + t) . s(i - j) A      far  q' . (s(number of summaries between) B + b)

That is the authors' causal layer, whose four projections have no biases. A and B are as large as a projection, which
is more than fair comparisons allow; without them positions are the backbone's. `memory` > 0 lets `carried` hand that
many tokens on to the next segment: they are near and far tokens of it, as in the authors' code summed up head by head
before they are projected. CAB's causal layer is `relative=True` with a memory of zeros that every softmax includes.

Paper: arXiv:2107.02192. Departs from the paper in: as in the authors' code, P comes from x and not from k, and in the
non-causal form both layer norms act on the summaries.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, Attention, AttentionMeta, DecodeState, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.cache import fill_ring, put_in_ring, ring_positions
from longspan.kernels.layer_norm import layer_norm
from longspan.kernels.masked import masked_attention
from longspan.kernels.near_far import is_faster, near_far
from longspan.kernels.packing import fill_up, left_align, real
from longspan.kernels.precision import at_least_single, without_autocast
from longspan.kernels.weighted_means import weighted_means

TILE = 64  # queries that are handed their keys together: a tile of the fused kernels


@dataclass
class Memory:
    """The last tokens of the segments before, at the right end of each row."""

    x: Float[Tensor, "b m d"]
    real: Bool[Tensor, "b m"]


@dataclass
class Past(DecodeState):
    """The last `window` keys and values, the summaries of whole chunks, and sums over the chunk that has begun."""

    near_k: Float[Tensor, "b h s c"]
    near_v: Float[Tensor, "b h s c"]
    far_k: Float[Tensor, "b h f c"]
    far_v: Float[Tensor, "b h f c"]
    sums: Float[Tensor, "b h r k_v_1"]  # of k, of v and of 1, weighted by exp(logit) relative to the largest logit
    largest: Float[Tensor, "b h r 1"]
    lengths: Int[Tensor, " b"]


class LongShort(Attention):
    meta = AttentionMeta(
        title="LongShort",
        paper="arXiv:2107.02192",
        family="hybrid",
        cost="n^2",
        patterns=SELF_PATTERNS,
        dropout="weights",
        remark="Linear when non-causal; against CAB's table, causally every later token sees the summary of a chunk.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        window: int | None = None,
        landmarks: int = 32,
        conv: int = 0,
        chunk: int = 16,
        rank: int = 1,
        relative: bool = False,
        memory: int = 0,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        causal = self.pattern.causal
        self.window = window if window is not None else 512 if causal else 8
        self.landmarks, self.chunk, self.rank, self.relative, self.memory = landmarks, chunk, rank, relative, memory
        self._check(conv)
        inner, plain = self.inner, bias and not relative
        self.query, self.key, self.value = (nn.Linear(dim, inner, bias=plain) for _ in range(3))
        self.out = nn.Linear(inner, dim, bias=plain)
        self.near_norm, self.far_norm = nn.LayerNorm(inner), nn.LayerNorm(inner)
        # wrapped, since the initialisation of bare linear maps is the backbone's
        self.summaries = nn.Sequential(nn.Linear(dim, heads * (rank if causal else landmarks), bias=bias))
        if conv:
            self.conv = nn.Conv2d(heads, heads, (conv, 1), padding=(conv // 2, 0), groups=heads, bias=False)
            nn.init.zeros_(self.conv.weight)
        if relative:
            self.near_places = nn.Sequential(nn.Linear(dim, inner, bias=False))
            self.far_places = nn.Sequential(nn.Linear(dim, inner, bias=bias))
            self.near_key_bias, self.near_place_bias = (
                nn.Parameter(torch.zeros(heads, 1, inner // heads)) for _ in "kp"
            )

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        self._source(x, context, mask, context_mask)
        if self.pattern.causal:
            return self._causal(x, mask, None)
        return self.out(self.mix(self.query(x), self.key(x), self.value(x), self.summaries(x), mask))

    def carried(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
        carry: Memory | None = None,
    ) -> tuple[Float[Tensor, "b n d"], Memory | None]:
        """`forward` of a segment that goes on where the carried one ended, and its own last tokens, detached."""
        if not self.memory:
            return self(x, context, mask=mask, context_mask=context_mask), carry
        self._source(x, context, mask, context_mask)
        tokens, seen = x.detach(), torch.ones_like(x[..., 0], dtype=torch.bool) if mask is None else mask
        if carry is not None:
            tokens, seen = torch.cat([carry.x, tokens], dim=1), torch.cat([carry.real, seen], dim=1)
        return self._causal(x, mask, carry), _last(tokens, seen, self.memory)

    def mix(
        self,
        q: Float[Tensor, "b n d"],
        k: Float[Tensor, "b n d"],
        v: Float[Tensor, "b n d"],
        logits: Float[Tensor, "b n h_times_r"],
        mask: Bool[Tensor, "b n"] | None,
    ) -> Float[Tensor, "b n d"]:
        """The non-causal form between its projections."""
        (b, n), w, dropout = q.shape[:2], self.window, self.dropout if self.training else 0.0
        q, k, v = self._split(q), self._normed(self.near_norm, k), self._normed(self.near_norm, v)
        logits, side = self._split(logits), max(w // 2, 1)
        far = [self._far_normed(weighted_means(logits, u, mask=mask)[:, :, None]) for u in (k, v)]
        if is_faster(q, dropout):
            y = near_far(q, k, v, *far, step=w, left=side, right=side, key_mask=mask)
        else:
            everywhere = q.new_ones(b, n, dtype=torch.bool) if mask is None else mask
            tile = w * -(-max(TILE, self.landmarks) // w)
            tile = tile if tile < n else w * -(-n // w)
            place, key = torch.arange(tile, device=q.device)[:, None], torch.arange(-side, tile + side, device=q.device)
            block = place // w * w
            y = _attend(
                *(q, k, v, *far),
                near=(key >= block - side) & (key < block + w + side),
                before=side,
                real=everywhere,
                far_seen=everywhere.any(dim=1)[:, None, None].expand(-1, n, self.landmarks),
                dropout=dropout,
            )
        y = y if mask is None else y.masked_fill(~mask[:, None, :, None], 0)
        if hasattr(self, "conv"):
            v = v if mask is None else v.masked_fill(~mask[:, None, :, None], 0)
            y = y + self.conv(v).to(y.dtype)
        return rearrange(y, "b h n c -> b n (h c)")

    def prefill(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], Past]:
        self._needs_decoding()
        y = self(x, context, mask=mask, context_mask=context_mask) if x.shape[1] else x
        x, lengths = left_align(x, mask)
        k, v, logits = self.key(x), self.value(x), self._logits(x)
        near_k, near_v = (
            fill_ring(rearrange(self._normed(self.near_norm, u), "b h n c -> b n h c"), lengths, self.window)
            for u in (k, v)
        )
        far_k, far_v = self._chunk_summaries(k, v, logits)
        begun = torch.arange(x.shape[1], device=x.device) >= (lengths // self.chunk * self.chunk)[:, None]
        begun = (begun & real(lengths, x.shape[1]))[:, None, :, None]
        with without_autocast(x):
            sums, largest = _sums(logits.masked_fill(~begun, -torch.inf), self._split(k), self._split(v))
        return y, Past(near_k, near_v, far_k, far_v, sums, largest, lengths)

    def step(self, x_t: Float[Tensor, "b d"], state: Past) -> tuple[Float[Tensor, "b d"], Past]:
        self._needs_decoding()
        x, place = x_t[:, None], state.lengths
        q, k, v = self._split(self.query(x)), self.key(x), self.value(x)
        near_k = put_in_ring(state.near_k, self._normed(self.near_norm, k)[:, :, 0], place)
        near_v = put_in_ring(state.near_v, self._normed(self.near_norm, v)[:, :, 0], place)
        at, far = ring_positions(place, self.window), torch.arange(state.far_k.shape[2], device=x.device)
        behind = (place // self.chunk * self.rank)[:, None] - 1 - far  # summaries between the query and each
        visible, bias = torch.cat([behind >= 0, at >= 0], dim=1)[:, None, None], None
        if self.relative:
            q, by_near, by_far = self._relative(q, len(far))
            near, far_bias = _at(by_near, place[:, None] - at), _at(by_far, behind) - self._shift(state.far_k)
            bias = torch.cat([far_bias, near], dim=-1)
        k_all, v_all = torch.cat([state.far_k, near_k], dim=2), torch.cat([state.far_v, near_v], dim=2)
        y = rearrange(_exact(q, k_all, v_all, visible, bias, 0.0), "b h 1 c -> b (h c)")
        logits = self._logits(x)
        with without_autocast(x):
            sums, largest = _added(state.sums, state.largest, *_sums(logits, self._split(k), self._split(v)))
        whole = (place + 1) % self.chunk == 0
        state = Past(near_k, near_v, state.far_k, state.far_v, sums, largest, place + 1)
        return self.out(y.to(self.out.weight.dtype)), self._closed(state, whole) if whole.any() else state

    def _closed(self, state: Past, whole: Bool[Tensor, " b"]) -> Past:
        """The chunks of these rows are whole: their sums become summaries, and new ones begin."""
        share = state.sums[..., :-1] / state.sums[..., -1:].clamp(min=torch.finfo(state.sums.dtype).tiny)
        summaries = (self._far_normed(u[:, :, None]).to(state.far_k.dtype) for u in share.chunk(2, dim=-1))
        last = state.lengths // self.chunk * self.rank
        width = int(last[whole].max())
        place = torch.arange(max(width, state.far_k.shape[2]), device=last.device)
        slot = place - (last - self.rank)[:, None]  # which of the new summaries stands at each place
        new = (whole[:, None] & (slot >= 0) & (slot < self.rank))[:, None, :, None]
        far_k, far_v = (
            torch.where(new, _taken(summary, slot), fill_up(old, len(place)))
            for summary, old in zip(summaries, (state.far_k, state.far_v), strict=True)
        )
        empty = _sums(state.sums.new_zeros(*state.sums.shape[:2], 0, self.rank), far_k[:, :, :0], far_v[:, :, :0])
        begun = whole[:, None, None, None]
        sums, largest = torch.where(begun, empty[0], state.sums), torch.where(begun, empty[1], state.largest)
        return Past(state.near_k, state.near_v, far_k, far_v, sums, largest, state.lengths)

    def _causal(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, memory: Memory | None
    ) -> Float[Tensor, "b n d"]:
        x, _ = left_align(x, mask)  # then every token before a real one is real
        q, k, v = self._split(self.query(x)), self.key(x), self.value(x)
        far_k, far_v = self._chunk_summaries(k, v, self._split(self.summaries(x)))
        k, v = self._normed(self.near_norm, k), self._normed(self.near_norm, v)
        if memory is None and not self.relative and is_faster(q, self.dropout if self.training else 0.0):
            y = near_far(q, k, v, far_k, far_v, left=self.window - 1, chunk=self.chunk, rank=self.rank)
        else:
            y = self._by_tile(q, k, v, far_k, far_v, memory)
        y = rearrange(y, "b h n c -> b n (h c)")
        if mask is not None:  # back to where the tokens were, nothing elsewhere
            rows = torch.arange(len(x), device=x.device)[:, None]
            y = y[rows, (mask.cumsum(dim=1) - 1).clamp(min=0)].masked_fill(~mask[..., None], 0)
        return self.out(y)

    def _by_tile(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h n c"],
        v: Float[Tensor, "b h n c"],
        far_k: Float[Tensor, "b h f c"],
        far_v: Float[Tensor, "b h f c"],
        memory: Memory | None,
    ) -> Float[Tensor, "b h n c"]:
        """The causal form between its projections, with all that it may be asked for and on any device."""
        b, n, w = q.shape[0], q.shape[2], self.window
        seen, older, ahead = q.new_ones(b, n, dtype=torch.bool), 0, 0
        if memory is not None:
            older_k, older_v, older_seen = self._remembered(memory)
            far_k, far_v = torch.cat([older_k, far_k], dim=2), torch.cat([older_v, far_v], dim=2)
            older, ahead = older_k.shape[2], min(self.memory, w - 1)
            last = memory.x[:, self.memory - ahead :]
            k = torch.cat([self._normed(self.near_norm, self.key(last)), k], dim=2)
            v = torch.cat([self._normed(self.near_norm, self.value(last)), v], dim=2)
            seen = torch.cat([memory.real[:, self.memory - ahead :], seen], dim=1)
        chunks = torch.arange(n, device=q.device) // self.chunk
        # how many summaries stand between each query and each summary; negative where it is not yet to be seen
        behind = chunks[:, None] * self.rank - 1 - torch.arange(-older, far_k.shape[2] - older, device=q.device)
        far_seen = (behind >= 0).expand(b, -1, -1)
        if memory is not None:
            far_seen = torch.cat([far_seen[..., :older] & older_seen[:, None], far_seen[..., older:]], dim=2)
        tile = max(TILE, w)
        tile = tile if tile < n else n
        before = w - 1 if w < n + ahead else n + ahead - 1  # no further than there are tokens
        lag = torch.arange(tile, device=q.device)[:, None] + before - torch.arange(tile + before, device=q.device)
        bias = None
        if self.relative:
            q, by_near, by_far = self._relative(q, far_k.shape[2])
            bias = by_near, _at(by_far, behind) - self._shift(far_k)
        return _attend(
            *(q, k, v, far_k, far_v),
            near=(lag >= 0) & (lag < w),
            before=before,
            ahead=ahead,
            real=seen,
            far_seen=far_seen,
            bias=bias,
            dropout=self.dropout if self.training else 0.0,
        )

    def _chunk_summaries(
        self, k: Float[Tensor, "b n d"], v: Float[Tensor, "b n d"], logits: Float[Tensor, "b h n r"]
    ) -> tuple[Float[Tensor, "b h f c"], Float[Tensor, "b h f c"]]:
        """`rank` keys and values for every whole chunk."""
        b, whole = len(k), k.shape[1] // self.chunk * self.chunk
        logits, k, v = (
            rearrange(u[:, :, :whole], "b h (g s) c -> (b g) h s c", s=self.chunk)
            for u in (logits, self._split(k), self._split(v))
        )
        far = (rearrange(weighted_means(logits, u), "(b g) h r c -> b h g r c", b=b) for u in (k, v))
        far_k, far_v = map(self._far_normed, far)
        return far_k, far_v

    def _remembered(
        self, memory: Memory
    ) -> tuple[Float[Tensor, "b h f c"], Float[Tensor, "b h f c"], Bool[Tensor, "b f"]]:
        """`rank` keys and values for every chunk of the memory, and which of these chunks hold a token."""
        hidden = ~rearrange(memory.real, "b (g s) -> b 1 g s 1", s=self.chunk)
        logits = rearrange(self._logits(memory.x), "b h (g s) r -> b h g s r", s=self.chunk)
        p = logits.masked_fill(hidden, torch.finfo(logits.dtype).min).softmax(dim=3).masked_fill(hidden, 0)
        tokens = rearrange(self._split(memory.x), "b h (g s) c -> b h g s c", s=self.chunk)
        pooled = rearrange(p.mT.to(tokens.dtype) @ tokens, "b h g r c -> b (g r) (h c)")
        far_k, far_v = (self._normed(self.far_norm, project(pooled)) for project in (self.key, self.value))
        seen = repeat(~hidden.all(dim=3), "b 1 g 1 -> b (g r)", r=self.rank)
        return far_k, far_v, seen

    def _relative(
        self, q: Float[Tensor, "b h n c"], farthest: int
    ) -> tuple[Float[Tensor, "b h n c"], Float[Tensor, "b h n w"], Float[Tensor, "b h n f"]]:
        """The query that near keys meet, and the scores of places by distance, near and far."""
        root, weight = q.shape[-1] ** 0.5, self.out.weight
        distance = torch.arange(max(self.window, farthest), dtype=at_least_single(weight).dtype, device=q.device)
        table = sinusoid(distance, self.dim).to(weight.dtype)
        near, far = (
            rearrange(to(table[:count]), "s (h c) -> h s c", h=self.heads)
            for to, count in ((self.near_places, self.window), (self.far_places, farthest))
        )
        by_near = (q / root + self.near_place_bias.to(q.dtype)) @ near.mT.to(q.dtype)
        return q + root * self.near_key_bias.to(q.dtype), by_near, q / root @ far.mT.to(q.dtype)

    def _shift(self, far_k: Float[Tensor, "b h f c"]) -> Float[Tensor, "b h 1 f"]:
        """What the bias in a query that is meant for near keys adds to the scores of far ones."""
        return self.near_key_bias.to(far_k.dtype) @ far_k.mT

    def _logits(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b h n r"]:
        return at_least_single(self._split(self.summaries(x)))

    def _split(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b h n c"]:
        return rearrange(x, "b n (h c) -> b h n c", h=self.heads)

    def _normed(self, norm: nn.LayerNorm, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b h n c"]:
        """A layer norm over all heads together."""
        return self._split(layer_norm(x, norm.weight, norm.bias, norm.eps))

    def _far_normed(self, x: Float[Tensor, "b h g r c"]) -> Float[Tensor, "b h g_r c"]:
        return self._normed(self.far_norm, rearrange(x, "b h g r c -> b (g r) (h c)"))

    def _check(self, conv: int) -> None:
        if min(self.window, self.landmarks, self.chunk, self.rank) < 1:
            raise UsageError(
                f"window, landmarks, chunk and rank must be at least 1, got {self.window}, {self.landmarks}, "
                f"{self.chunk} and {self.rank}."
            )
        if conv and (conv < 0 or conv % 2 == 0):
            raise UsageError(
                f"conv counts the taps of a centred filter, got {conv}; choose an odd number, or 0 for none."
            )
        if conv and self.pattern.causal:
            raise UsageError(f"conv={conv} would look ahead; leave it out as {self.pattern}.")
        if (self.relative or self.memory) and not self.pattern.causal:
            raise UsageError(f"relative and memory belong to the causal form; leave them out as {self.pattern}.")
        if self.memory < 0 or self.memory % self.chunk:
            raise UsageError(
                f"A memory is cut into chunks of {self.chunk}, got memory={self.memory}; choose a multiple."
            )


def sinusoid(distance: Float[Tensor, " s"], width: int) -> Float[Tensor, "s width"]:
    """Sines and then cosines of the distance, at frequencies from 1 down to 1 / 10000."""
    half = torch.arange(0, width, 2, dtype=distance.dtype, device=distance.device)
    angle = distance[:, None] * torch.exp(half * (-math.log(10_000) / width))
    return torch.cat([angle.sin(), angle.cos()], dim=-1)[:, :width]


def _attend(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m c"],
    far_k: Float[Tensor, "b h f c"],
    far_v: Float[Tensor, "b h f c"],
    *,
    near: Bool[Tensor, "tile span"],
    before: int,
    real: Bool[Tensor, "b m"],
    far_seen: Bool[Tensor, "b n f"],
    ahead: int = 0,
    bias: tuple[Float[Tensor, "b h n w"], Float[Tensor, "b h n f"]] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b h n c"]:
    """One softmax over near and far keys, tile by tile.

    Tile g holds the queries from g * tile on, and its near keys begin `before` places earlier; the first `ahead` keys
    stand before the first query. `bias` has the near scores by distance and the far ones by key.
    """
    n, (tile, span) = q.shape[2], near.shape
    tiles = -(-n // tile)
    edges = before - ahead, tiles * tile - n + span - tile - before
    q = rearrange(fill_up(q, tiles * tile), "b h (g s) c -> (b g) h s c", g=tiles)
    k, v = (F.pad(u.contiguous(), (0, 0, *edges)).unfold(2, span, tile) for u in (k, v))
    k, v = (
        torch.cat([repeat(far, "b h f c -> (b g) h f c", g=tiles), rearrange(u, "b h g c s -> (b g) h s c")], dim=2)
        for far, u in ((far_k, k), (far_v, v))
    )
    real = F.pad(real, edges, value=False).unfold(1, span, tile)
    far_seen = F.pad(far_seen, (0, 0, 0, tiles * tile - n), value=False)
    visible = torch.cat(
        [
            rearrange(far_seen, "b (g s) f -> (b g) 1 s f", g=tiles),
            repeat(real, "b g t -> (b g) 1 s t", s=tile) & near,
        ],
        dim=-1,
    )
    scores = None
    if bias is not None:
        by_near, by_far = (rearrange(fill_up(u, tiles * tile), "b h (g s) w -> (b g) h s w", g=tiles) for u in bias)
        lag = torch.arange(tile, device=q.device)[:, None] + before - torch.arange(span, device=q.device)
        scores = torch.cat([by_far, _at(by_near, lag)], dim=-1)
    y = _exact(q, k, v, visible, scores, dropout)
    return rearrange(y, "(b g) h s c -> b h (g s) c", g=tiles)[:, :, :n]


def _exact(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m c"],
    visible: Bool[Tensor, "b 1 n m"],
    bias: Float[Tensor, "b h n m"] | None,
    dropout: float,
) -> Float[Tensor, "b h n c"]:
    """`masked_attention` with something added to the scores, or nothing."""
    if bias is None:
        return masked_attention(q, k, v, visible, dropout=dropout)
    blind = ~visible.any(dim=-1, keepdim=True)
    bias = bias.masked_fill(~(visible | blind), -torch.inf).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout).masked_fill(blind, 0)


def _at(scores: Float[Tensor, "b h n s"], distance: Int[Tensor, "*n t"]) -> Float[Tensor, "b h n t"]:
    """The scores at these distances, anything where there is no such distance."""
    distance = distance[:, None, None] if scores.shape[2] == 1 else distance
    distance = distance.clamp(min=0).clamp(max=max(scores.shape[-1] - 1, 0))
    return scores.gather(-1, distance.expand(*scores.shape[:-1], -1))


def _sums(
    logits: Float[Tensor, "b h n r"], k: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n c"]
) -> tuple[Float[Tensor, "b h r k_v_1"], Float[Tensor, "b h r 1"]]:
    """Sums of k, of v and of 1, weighted by exp(logit) relative to the largest one; -inf takes no part."""
    nothing = torch.finfo(logits.dtype).min / 4
    largest = F.pad(logits, (0, 0, 1, 0), value=nothing).amax(dim=2)
    k, v = k.to(logits.dtype), v.to(logits.dtype)
    payload = torch.cat([k, v, torch.ones_like(k[..., :1])], dim=-1)
    return (logits - largest[:, :, None]).exp().mT @ payload, largest[..., None]


def _added(
    one: Tensor, largest_one: Tensor, other: Tensor, largest_other: Tensor
) -> tuple[Float[Tensor, "b h r k_v_1"], Float[Tensor, "b h r 1"]]:
    """Two sums as one."""
    largest = torch.maximum(largest_one, largest_other)
    return one * (largest_one - largest).exp() + other * (largest_other - largest).exp(), largest


def _taken(x: Float[Tensor, "b h r c"], slot: Int[Tensor, "b f"]) -> Float[Tensor, "b h f c"]:
    index = slot.clamp(0, x.shape[2] - 1)[:, None, :, None]
    return x.gather(2, index.expand(-1, x.shape[1], -1, x.shape[3]))


def _last(tokens: Float[Tensor, "b n d"], seen: Bool[Tensor, "b n"], count: int) -> Memory:
    """The last `count` real tokens of each row at its right end, zeros before them if there are fewer."""
    missing = max(0, count - tokens.shape[1])
    tokens, seen = F.pad(tokens, (0, 0, missing, 0)), F.pad(seen, (missing, 0), value=False)
    order = seen.long().argsort(dim=1, stable=True)[:, -count:]
    seen = seen.gather(1, order)
    rows = torch.arange(len(tokens), device=tokens.device)[:, None]
    return Memory(tokens[rows, order].masked_fill(~seen[..., None], 0), seen)
