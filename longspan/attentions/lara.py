"""LARA, linear randomized attention: a few samples, each good for one part of the row, stand for softmax attention.

    y_i = sum_r w_ir f_r      f_r = sum_j softmax_j(xi(k_j, omega_r)) v_j

with xi(x, omega) = (omega . x - |x|^2 / 2) / sqrt(c), the logarithm of a random feature. The samples omega_r = mu_r +
noise (none of it in evaluation) come from proposals around mu_r = q'_r + k'_r, the r-th of `landmarks` summaries of the
queries and of the keys. Their weights are those of importance sampling:

    w_i = softmax_r(log alpha_ir + xi(q_i, omega_r) + log sum_j exp xi(k_j, omega_r) - xi(mu_r, omega_r))

    weighting = "optimal"  alpha_ir = max(b_r + beta (t_ir - mean_r t_ir), 1e-8), t_i = softmax_r(q'_r . q_i / sqrt(c))
    weighting = "balance"  alpha_ir = b_r = exp xi(mu_r, omega_r) / sum_s exp xi(mu_s, omega_r)
    weighting = "biased"   alpha_ir = b_r exp(mu_r . q_i / sqrt(c))
    weighting = "query"    alpha_ir = exp(mu_r . q_i / sqrt(c)), which is CAB's

    proposal = "projected"   the mean of LayerNorm(Linear(token)) over each of `landmarks` segments of equal length
    proposal = "pooled"      LayerNorm(Linear(mean over the segment)), which the authors use for pictures
    proposal = "means"       the mean over the segment itself, without parameters; CAB's

A row with fewer tokens than landmarks has one landmark for each token. In cross attention queries and keys are cut into
equally many segments; where one side has too few tokens for that, they serve as summaries several times. `antithetic`
draws the samples in pairs, mu + noise and mu - noise. The paper has 49 landmarks for pictures, CAB 64 or 16.

Paper: arXiv:2204.04667. Departs from the paper in: as in the authors' code, noise has a variance of 1 where exact
random features want sqrt(c); segments are cut over the real tokens of each row; t is normalised over the landmarks.
The authors' code normalises it over the queries (`compare="queries"`) and cuts the padded width, where padding counts
as zeros (`segments="width"`): with this setting a row depends on the amount of padding.
"""

from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import NONCAUSAL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.few_keys import few_keys
from longspan.kernels.few_keys.reference import FLOOR
from longspan.kernels.few_queries import few_queries
from longspan.kernels.normed_means import normed_means
from longspan.kernels.precision import at_least_single, without_autocast
from longspan.kernels.segment_means import segment_means


class LARA(HeadwiseAttention):
    meta = AttentionMeta(
        title="LARA",
        paper="arXiv:2204.04667",
        family="kernel",
        cost="n",
        patterns=NONCAUSAL_PATTERNS,
        stochastic=True,
        remark="CAB's table denies cross attention; queries and keys need equally many segments, not equal lengths.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        landmarks: int = 64,
        proposal: Literal["projected", "pooled", "means"] = "projected",
        weighting: Literal["optimal", "balance", "biased", "query"] = "optimal",
        beta: float = 1.0,
        compare: Literal["landmarks", "queries"] = "landmarks",
        antithetic: bool = False,
        segments: Literal["real", "width"] = "real",
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if landmarks < 1:
            raise UsageError(f"lara needs at least 1 landmark, got landmarks={landmarks}.")
        self.landmarks, self.proposal, self.weighting, self.beta = landmarks, proposal, weighting, beta
        self.compare, self.antithetic, self.segments = compare, antithetic, segments
        self.summarise_query = None if proposal == "means" else Summary(self.head_dim)
        self.summarise_key = None if proposal == "means" else Summary(self.head_dim)

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
            center, mu, omega, exists = self._samples(q, k, key_mask, query_mask)
            scale = q.shape[-1] ** -0.5
            direction = scale * omega
            f, level = few_queries(direction, k, v, half=scale / 2, key_mask=key_mask)
            everybody = _xi(mu, direction, scale)  # "b h r r"
            shift = level - _diagonal(everybody)
            if exists is not None:
                everybody = everybody.masked_fill(~exists[:, None, None], torch.finfo(mu.dtype).min)
            log_b = _diagonal(everybody.log_softmax(dim=-1))
            if self.weighting in ("balance", "biased"):
                shift = shift + log_b
            if self.weighting in ("biased", "query"):
                direction = direction + scale * mu
            if exists is not None:
                shift = shift.masked_fill(~exists[:, None], -torch.inf)
            if self.weighting != "optimal":
                y = few_keys(q, direction, f, shift=shift, query_mask=query_mask)
            elif self.compare == "landmarks":
                count = mu.shape[2] if exists is None else exists.sum(dim=-1)[:, None, None]
                factor = (scale * center, log_b.exp() - self.beta / count, self.beta)  # t adds up to 1
                y = few_keys(q, direction, f, shift=shift, factor=factor, query_mask=query_mask)
            else:
                q = _erased(at_least_single(q), query_mask)
                alpha = self._compared_over_queries(q, scale * center, log_b.exp(), exists, query_mask)
                reads = (q @ direction.mT + shift[:, :, None]).softmax(dim=-1) * alpha
                y = reads @ f / reads.sum(dim=-1, keepdim=True)
        return y.to(v.dtype)

    def weights(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b h n m"]:
        every_key = torch.eye(k.shape[2], dtype=k.dtype, device=k.device).expand(*k.shape[:2], -1, -1)
        return self.attend(q, k, every_key, key_mask=key_mask, query_mask=None if self.pattern.cross else key_mask)

    def noise(self, mu: Float[Tensor, "b h r c"]) -> Float[Tensor, "b h r c"]:
        """What a sample adds to the mean of its proposal while training."""
        return torch.randn_like(mu)

    def _samples(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        key_mask: Bool[Tensor, "b m"] | None,
        query_mask: Bool[Tensor, "b n"] | None,
    ) -> "Samples":
        center, in_q = self._summaries(q, self.summarise_query, query_mask)
        other, in_k = self._summaries(k, self.summarise_key, key_mask)
        exists = None
        if key_mask is not None or query_mask is not None or min(q.shape[2], k.shape[2]) < self.landmarks:
            exists = in_q | in_k if self.pattern.cross else in_q
            if self.pattern.cross:
                have_q, have_k, want = (there.sum(dim=1) for there in (in_q, in_k, exists))
                center, other = _stretched(center, have_q, want), _stretched(other, have_k, want)
            exists = exists | ~exists.any(dim=-1, keepdim=True)  # a row without any is finite too, and sees nothing
        mu = center + other
        if not self.training:
            return Samples(center, mu, mu, exists)
        noise = self.noise(mu)
        if not self.antithetic:
            return Samples(center, mu, mu + noise, exists)
        twice = None if exists is None else exists.repeat(1, 2)
        center, mu = (torch.cat([u, u], dim=2) for u in (center, mu))
        return Samples(center, mu, mu + torch.cat([noise, -noise], dim=2), twice)

    def _summaries(
        self, x: Float[Tensor, "b h n c"], summary: "Summary | None", mask: Bool[Tensor, "b n"] | None
    ) -> tuple[Float[Tensor, "b h r c"], Bool[Tensor, "b r"]]:
        """Those of the queries or of the keys, and which of them a row has."""
        cut = mask if self.segments == "real" else None
        if summary is not None and self.proposal == "projected":
            return summary.means(x if cut is mask else _erased(x, mask), self.landmarks, cut)
        means, there = segment_means(_erased(x, mask), self.landmarks, cut, longer="last")
        return means if summary is None else summary(means), there

    def _compared_over_queries(
        self,
        q: Float[Tensor, "b h n c"],
        center: Float[Tensor, "b h r c"],
        b: Float[Tensor, "b h r"],
        exists: Bool[Tensor, "b r"] | None,
        query_mask: Bool[Tensor, "b n"] | None,
    ) -> Float[Tensor, "b h n r"]:
        """The weights called optimal, t normalised over the queries."""
        t = q @ center.mT
        if query_mask is not None and self.segments == "real":
            t = t.masked_fill(~query_mask[:, None, :, None], torch.finfo(t.dtype).min)
        t = t.softmax(dim=2)
        if exists is None:
            mean = t.mean(dim=-1, keepdim=True)
        else:
            here = rearrange(exists, "b r -> b 1 1 r")
            mean = (t * here).sum(dim=-1, keepdim=True) / here.sum(dim=-1, keepdim=True)
        return (b[:, :, None] + self.beta * (t - mean)).clamp(min=FLOOR)


class Samples(NamedTuple):
    """The samples omega with the means mu of their proposals and the summaries q' of the queries beside them."""

    center: Float[Tensor, "b h r c"]
    mu: Float[Tensor, "b h r c"]
    omega: Float[Tensor, "b h r c"]
    exists: Bool[Tensor, "b r"] | None  # which of them a row has, where some may be missing


class Summary(nn.Module):
    """LayerNorm(Linear(x)), the same for all heads, in single precision or better."""

    def __init__(self, channels: int):
        super().__init__()
        self.linear, self.norm = nn.Linear(channels, channels), nn.LayerNorm(channels)
        nn.init.trunc_normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h n c"]:
        weight, bias, gain, shift = (p.to(x.dtype) for p in (*self.linear.parameters(), *self.norm.parameters()))
        return F.layer_norm(F.linear(x, weight, bias), gain.shape, gain, shift, self.norm.eps)

    def means(
        self, x: Float[Tensor, "b h n c"], segments: int, mask: Bool[Tensor, "b n"] | None
    ) -> tuple[Float[Tensor, "b h r c"], Bool[Tensor, "b r"]]:
        """Of the summaries of all tokens over each segment, and which segments have tokens."""
        weight, bias = self.linear.weight, self.linear.bias
        means, there = normed_means(x, weight, bias, segments, mask, eps=self.norm.eps)
        gain, shift = (p.to(means.dtype) for p in self.norm.parameters())
        return torch.addcmul(shift, means, gain), there


def _xi(x: Float[Tensor, "b h m c"], omega: Float[Tensor, "b h r c"], scale: float) -> Float[Tensor, "b h r m"]:
    """The logarithm of a random feature of each x at each omega, which is scaled already."""
    return omega @ x.mT - scale / 2 * x.square().sum(dim=-1)[:, :, None]


def _diagonal(x: Float[Tensor, "b h r r"]) -> Float[Tensor, "b h r"]:
    return x.diagonal(dim1=-2, dim2=-1)


def _stretched(
    means: Float[Tensor, "b h r c"], have: Int[Tensor, " b"], want: Int[Tensor, " b"]
) -> Float[Tensor, "b h r c"]:
    """The first `have` summaries spread over `want` landmarks, each of them several times if there are too few."""
    place = torch.arange(means.shape[2], device=means.device)
    source = (place * have[:, None] // want.clamp(min=1)[:, None]).clamp(max=means.shape[2] - 1)
    return means.gather(2, source[:, None, :, None].expand_as(means))


def _erased(x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b h n c"]:
    return x if mask is None else x.masked_fill(~mask[:, None, :, None], 0)
