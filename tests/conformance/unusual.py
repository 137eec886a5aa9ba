"""Unusual mechanisms that are correct: the check must not refuse any of them."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from longspan.attentions import (
    ALL_PATTERNS,
    NONCAUSAL_PATTERNS,
    SELF_PATTERNS,
    AttentionMeta,
    HeadwiseAttention,
    Pattern,
)

NS, CS, NC = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_CROSS


def declare(title: str, cost: str, patterns, **claims) -> AttentionMeta:
    return AttentionMeta(title=title, paper="none", family="unusual", cost=cost, patterns=patterns, **claims)


def wide(x):
    """In single precision at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def all_real(x, mask):
    return torch.ones(x.shape[0], x.shape[2], dtype=torch.bool, device=x.device) if mask is None else mask


class Scored(HeadwiseAttention):
    """Weights from a matrix of scores: what several of the mechanisms below share."""

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        visible = self.visible(q, k, all_real(k, key_mask))
        return (self.probabilities(self.scores(q, k, all_real(k, key_mask)), visible).to(v.dtype) @ v).to(v.dtype)

    def scores(self, q, k, real):
        return wide(q) @ wide(k).mT / math.sqrt(q.shape[-1])

    def visible(self, q, k, real):
        n, m = q.shape[2], k.shape[2]
        seen = torch.ones(n, m, dtype=torch.bool, device=q.device)
        return (seen.tril() if self.pattern is CS else seen) & real[:, None, None, :]

    def probabilities(self, scores, visible):
        return torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1).masked_fill(~visible, 0)


class TopK(Scored):
    """Softmax over the best keys: a choice that no rounding leaves alone."""

    meta = declare("Top-k", "n^2", ALL_PATTERNS)

    def __init__(self, dim, heads, pattern, *, keys: int = 8, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.keys = keys

    def probabilities(self, scores, visible):
        scores = scores.masked_fill(~visible, -torch.inf)
        best = scores.topk(min(self.keys, scores.shape[-1]), dim=-1).indices
        chosen = torch.zeros_like(visible.expand_as(scores)).scatter(-1, best, value=True) & visible
        return super().probabilities(scores, chosen)


class SinkWindow(Scored):
    """The last sixteen tokens and the first one, which counts as a sink."""

    meta = declare("Window with a sink", "n^2", (CS,))

    def visible(self, q, k, real):
        place = real.cumsum(dim=1)[:, None] - 1  # among real tokens
        near = place[..., :, None] - place[..., None, :] < 16
        return super().visible(q, k, real) & (near | (place == 0)[..., None, :])


class TalkingHeads(Scored):
    """Heads are mixed before and after the softmax."""

    meta = declare("Talking heads", "n^2", ALL_PATTERNS)

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.before = nn.Parameter(torch.eye(heads) + 0.1 * torch.randn(heads, heads))
        self.after = nn.Parameter(torch.eye(heads) + 0.1 * torch.randn(heads, heads))

    def scores(self, q, k, real):
        s = super().scores(q, k, real)
        return torch.einsum("bhnm,hg->bgnm", s, self.before.to(s.dtype))

    def probabilities(self, scores, visible):
        p = super().probabilities(scores, visible)
        return torch.einsum("bhnm,hg->bgnm", p, self.after.to(p.dtype))


class ALiBi(Scored):
    """Scores fall with the distance, at a rate of each head."""

    meta = declare("ALiBi", "n^2", SELF_PATTERNS, positions=True)

    def scores(self, q, k, real):
        s = wide(super().scores(q, k, real))  # under autocast they are bfloat16, which cannot count beyond 256
        place = real.cumsum(dim=1).to(s.dtype)
        rate = 2.0 ** -torch.arange(1, self.heads + 1, dtype=s.dtype, device=s.device)
        return s - rate[:, None, None] * (place[:, None, :, None] - place[:, None, None, :]).abs()


class Cosine(Scored):
    """Cosine similarity with a learned temperature, one number."""

    meta = declare("Cosine", "n^2", ALL_PATTERNS)

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def scores(self, q, k, real):
        q, k = (F.normalize(wide(u), dim=-1, eps=1e-6) for u in (q, k))
        return q @ k.mT * self.temperature.to(q.dtype).exp()


class NullKey(Scored):
    """A learned key that holds nothing takes a share of the weight."""

    meta = declare("Null key", "n^2", ALL_PATTERNS)

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.null = nn.Parameter(torch.randn(heads, self.head_dim, 1))

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        real = all_real(k, key_mask)
        visible = self.visible(q, k, real)
        null = wide(q) @ self.null.to(wide(q).dtype) / math.sqrt(q.shape[-1])
        scores = torch.cat([null, self.scores(q, k, real).masked_fill(~visible, -torch.inf)], dim=-1)
        return (torch.softmax(scores, dim=-1)[..., 1:].to(v.dtype) @ v).to(v.dtype)


class Average(Scored):
    """The mean of a sharp and of a flat attention."""

    meta = declare("Average of two", "n^2", ALL_PATTERNS)

    def probabilities(self, scores, visible):
        sharp, flat = (super(Average, self).probabilities(scores * by, visible) for by in (4.0, 0.25))
        return (sharp + flat) / 2


class Retention(HeadwiseAttention):
    """A sum of the past that decays at a rate of each head, in chunks."""

    meta = declare("Retention", "n", (CS,))
    chunk = 32

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        real = all_real(k, key_mask)[:, None]
        log_decay = torch.log1p(-(2.0 ** -torch.arange(3, 3 + self.heads, dtype=wide(v).dtype, device=v.device)))
        steps = log_decay[:, None] * real  # a padded position neither adds nor decays
        k = wide(k) * real[..., None]
        return decayed_sum(wide(q), k, wide(v), steps, self.chunk).to(v.dtype)


class GatedLinear(HeadwiseAttention):
    """Linear attention whose state decays by a gate of each token."""

    meta = declare("Gated linear attention", "n", (CS,))

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.gate = nn.Parameter(torch.randn(heads, self.head_dim))

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        real = all_real(k, key_mask)[:, None]
        gate = F.logsigmoid(torch.einsum("bhtc,hc->bht", wide(k), self.gate.to(wide(k).dtype))) / 16
        k = F.softmax(wide(k), dim=-1) * real[..., None]
        return decayed_sum(F.softmax(wide(q), dim=-1), k, wide(v), gate * real, 32).to(v.dtype)


def decayed_sum(q, k, v, log_decay, chunk):
    """y_t = q_t sum_{s <= t} exp(sum of the decays after s up to t) k_s v_s^T, chunk by chunk."""
    n = q.shape[2]
    short = -n % chunk
    q, k, v = (F.pad(u, (0, 0, 0, short)) for u in (q, k, v))
    log_decay = F.pad(log_decay, (0, short)).expand(q.shape[0], -1, -1)
    state, rows = torch.zeros_like(k[:, :, :1].mT @ v[:, :, :1]), []
    within = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    parts = (u.split(chunk, dim=2) for u in (q, k, v, log_decay))
    for q_c, k_c, v_c, d_c in zip(*parts, strict=True):
        total = d_c.cumsum(dim=2)
        between = (total[..., :, None] - total[..., None, :]).masked_fill(~within, -torch.inf).exp()
        rows.append((q_c @ k_c.mT * between) @ v_c + (q_c * total.exp()[..., None]) @ state)
        left = (total[..., -1:] - total).exp()[..., None]
        state = state * total[..., -1, None, None].exp() + (k_c * left).mT @ v_c
    return torch.cat(rows, dim=2)[:, :, :n]


class ShortConvolution(HeadwiseAttention):
    """Four taps over the real tokens, and a gate."""

    meta = declare("Short convolution", "n", (CS,), positions=True)
    taps = 4

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.filter = nn.Parameter(torch.randn(heads, self.taps, self.head_dim) / 2)

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        real = all_real(k, key_mask)
        n = v.shape[2]
        order = torch.argsort(~real, dim=1, stable=True)  # real tokens first, contiguous
        back = torch.argsort(order, dim=1)

        def gather(u, by):
            return u.gather(2, by[:, None, :, None].expand_as(u))

        dense = gather(wide(v * k.sigmoid()) * real[:, None, :, None], order)
        dense = F.pad(dense, (0, 0, self.taps - 1, 0))
        y = sum(dense[:, :, i : i + n] * self.filter[:, i, None].to(dense.dtype) for i in range(self.taps))
        seen = (real.cumsum(dim=1) > 0) & real
        return (gather(y, back) * q.sigmoid() * seen[:, None, :, None]).to(v.dtype)


class MultiScalePooling(HeadwiseAttention):
    """Means of the last 1, 4, 16 ... tokens, weighed by the query."""

    meta = declare("Multi-scale pooling", "n", SELF_PATTERNS, positions=True)
    scales = (1, 4, 16, 64)

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.choose = nn.Parameter(torch.randn(heads, self.head_dim, len(self.scales)))

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        real = all_real(k, key_mask)[:, None, :, None]
        share = torch.softmax(wide(q) @ self.choose.to(wide(q).dtype), dim=-1)
        kept, counts = wide(v) * real, real.to(wide(v).dtype)
        y = torch.zeros_like(kept)
        for i, scale in enumerate(self.scales):
            ahead = 0 if self.pattern is CS else scale - 1
            sums, count = (window_sum(u, scale - 1, ahead) for u in (kept, counts))
            y = y + share[..., i, None] * sums / count.clamp(min=1)
        return y.to(v.dtype)


def window_sum(u, behind, ahead):
    """The sum over a window around each place, by differences of a pooled sum: no running sum that grows."""
    padded = F.pad(u, (0, 0, behind, ahead))
    return padded.unfold(2, behind + ahead + 1, 1).sum(dim=-1)


class LowRankMixing(HeadwiseAttention):
    """Tokens are mixed by a learned matrix of low rank between the places of a fixed length."""

    meta = declare("Low-rank mixing", "n", NONCAUSAL_PATTERNS, length_bound=True, positions=True)

    def __init__(self, dim, heads, pattern, *, rank: int = 8, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.longest = self._longest("max_context" if self.pattern.cross else "max_length")
        self.read = nn.Parameter(torch.randn(heads, rank, self.longest))
        self.write = nn.Parameter(torch.randn(heads, self.head_dim, rank))

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        self._check_room(k.shape[2], self.longest, "keys")
        real = all_real(k, key_mask)
        place = (real.cumsum(dim=1) - 1).clamp(min=0)
        read = self.read.to(wide(v).dtype)[:, :, place].permute(2, 0, 1, 3)  # b h r m
        pooled = (read * real[:, None, None, :]) @ wide(v) / math.sqrt(self.longest)
        share = torch.softmax(wide(q) @ self.write.to(wide(q).dtype), dim=-1)
        return (share @ pooled).to(v.dtype)


class ProductOfExperts(Scored):
    """Two softmaxes multiplied and normalised: the scores of both added, with values through a gate."""

    meta = declare("Product of experts", "n^2", ALL_PATTERNS)

    def scores(self, q, k, real):
        q, k = wide(q), wide(k)
        return q @ k.mT / math.sqrt(q.shape[-1]) - torch.cdist(q, k).square() / 8


MECHANISMS = (
    TopK, SinkWindow, TalkingHeads, ALiBi, Cosine, NullKey, Average, Retention, GatedLinear, ShortConvolution,
    MultiScalePooling, LowRankMixing, ProductOfExperts,
)  # fmt: skip
