"""LARA, linear randomized attention: a few samples, each good for one part of the row, approximate softmax attention.

    y_i = sum_r w_ir f_r      f_r = sum_j softmax_j(xi(k_j, omega_r)) v_j

with xi(x, omega) = (omega . x - |x|^2 / 2) / sqrt(c), the logarithm of a random feature. The samples
omega_r = mu_r + noise (without noise in evaluation) come from proposals around mu_r = q'_r + k'_r, the r-th of
`landmarks` summaries of the queries and of the keys. Their weights are those of importance sampling:

    w_i = softmax_r(log alpha_ir + xi(q_i, omega_r) + log sum_j exp xi(k_j, omega_r) - xi(mu_r, omega_r))

    weighting = "optimal"  alpha_ir = max(b_r + beta (t_ir - mean_r t_ir), 1e-8), t_i = softmax_r(q'_r . q_i / sqrt(c))
    weighting = "balance"  alpha_ir = b_r = exp xi(mu_r, omega_r) / sum_s exp xi(mu_s, omega_r)
    weighting = "biased"   alpha_ir = b_r exp(mu_r . q_i / sqrt(c))
    weighting = "query"    alpha_ir = exp(mu_r . q_i / sqrt(c)), which is CAB's

    proposal = "projected"   the mean of LayerNorm(Linear(token)) over each of `landmarks` segments of equal length
    proposal = "pooled"      LayerNorm(Linear(mean over the segment)), which the authors use for pictures
    proposal = "means"       the mean over the segment itself, without parameters; CAB's

A row with fewer tokens than landmarks has one landmark per token. In cross attention queries and keys are cut into the
same number of segments; a side with too few tokens uses them several times. `antithetic` draws the samples in pairs,
mu + noise and mu - noise. Paper: arXiv:2204.04667. Departs from the paper in: as in the authors' code, noise has a
variance of 1 where exact random features need sqrt(c); segments are cut over the real tokens of each row, and t is
normalised over the landmarks. The authors' code (`authors_lara`) cuts the padded width and normalises over the queries.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import NONCAUSAL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.landmark import landmark_attend, landmark_pool
from longspan.kernels.pooling import normed_means, segment_means
from longspan.kernels.precision import without_autocast


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
        antithetic: bool = False,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if landmarks < 1:
            raise UsageError(f"lara needs at least 1 landmark, got landmarks={landmarks}.")
        self.landmarks, self.proposal, self.antithetic = landmarks, proposal, antithetic
        self.weighting, self.beta = weighting, beta
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
            (center, mu, omega, exists), scale = self._samples(q, k, key_mask, query_mask), q.shape[-1] ** -0.5
            direction = scale * omega
            f, lse = landmark_pool(direction, k, v, key_norm=scale / 2, key_mask=key_mask)
            xi = direction @ mu.mT - scale / 2 * mu.square().sum(dim=-1)[:, :, None]  # xi(mu_s, omega_r) at [r, s]
            shift = lse - xi.diagonal(dim1=-2, dim2=-1)
            if exists is not None:
                xi = xi.masked_fill(~exists[:, None, None], torch.finfo(mu.dtype).min)
            log_b = xi.log_softmax(dim=-1).diagonal(dim1=-2, dim2=-1)
            if self.weighting in ("balance", "biased"):
                shift = shift + log_b
            if self.weighting in ("biased", "query"):
                direction = direction + scale * mu
            factor = None
            if self.weighting == "optimal":  # t sums to 1, so its mean is 1 / count
                count = mu.shape[2] if exists is None else exists.sum(dim=-1)[:, None, None]
                factor = (scale * center, log_b.exp() - self.beta / count, self.beta)
            y = landmark_attend(q, direction, f, shift=shift, factor=factor, key_mask=exists, query_mask=query_mask)
        return y.to(v.dtype)

    weights = HeadwiseAttention.weights_by_attending

    def noise(self, mu: Float[Tensor, "b h r c"]) -> Float[Tensor, "b h r c"]:
        """What is added to the proposal mean to draw a sample while training."""
        return torch.randn_like(mu)

    def _samples(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        key_mask: Bool[Tensor, "b m"] | None,
        query_mask: Bool[Tensor, "b n"] | None,
    ) -> tuple[Tensor, Tensor, Tensor, Bool[Tensor, "b r"] | None]:
        """q', mu and omega [b h r c], and which of them each row has (None: all)."""
        center, in_q = self._summaries(q, self.summarise_query, query_mask)
        other, in_k = self._summaries(k, self.summarise_key, key_mask)
        exists = None
        if key_mask is not None or query_mask is not None or min(q.shape[2], k.shape[2]) < self.landmarks:
            exists = in_q | in_k if self.pattern.cross else in_q
            if self.pattern.cross:
                have_q, have_k, want = (there.sum(dim=1) for there in (in_q, in_k, exists))
                center, other = _stretch(center, have_q, want), _stretch(other, have_k, want)
            exists = exists | ~exists.any(dim=-1, keepdim=True)  # an empty row keeps all, to stay finite
        mu = center + other
        if not self.training:
            return center, mu, mu, exists
        noise = self.noise(mu)
        if self.antithetic:
            noise, center, mu = (torch.cat(u, dim=2) for u in ((noise, -noise), (center, center), (mu, mu)))
            exists = None if exists is None else exists.repeat(1, 2)
        return center, mu, mu + noise, exists

    def _summaries(
        self, x: Float[Tensor, "b h n c"], summary: "Summary | None", mask: Bool[Tensor, "b n"] | None
    ) -> tuple[Float[Tensor, "b h r c"], Bool[Tensor, "b r"]]:
        """The summaries of the queries or of the keys, and which of them each row has."""
        if summary is not None and self.proposal == "projected":
            return summary.means(x, self.landmarks, mask)
        means, occupied = segment_means(x, self.landmarks, mask, longer="last")
        return means if summary is None else summary(means), occupied


class Summary(nn.Module):
    """LayerNorm(Linear(x)), the same for all heads, in single precision or better."""

    def __init__(self, channels: int):
        super().__init__()
        self.linear, self.norm = nn.Linear(channels, channels), nn.LayerNorm(channels)
        nn.init.normal_(self.linear.weight, std=0.02)  # a truncation at 100 deviations has no effect
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h n c"]:
        weight, bias, gain, shift = (p.to(x.dtype) for p in (*self.linear.parameters(), *self.norm.parameters()))
        return F.layer_norm(F.linear(x, weight, bias), gain.shape, gain, shift, self.norm.eps)

    def means(
        self, x: Float[Tensor, "b h n c"], segments: int, mask: Bool[Tensor, "b n"] | None
    ) -> tuple[Float[Tensor, "b h r c"], Bool[Tensor, "b r"]]:
        """The mean summary of the tokens in each segment, and which segments have tokens."""
        means, occupied = normed_means(x, self.linear.weight, self.linear.bias, segments, mask, eps=self.norm.eps)
        gain, shift = (p.to(means.dtype) for p in self.norm.parameters())
        return torch.addcmul(shift, means, gain), occupied


def _stretch(
    means: Float[Tensor, "b h r c"], have: Int[Tensor, " b"], want: Int[Tensor, " b"]
) -> Float[Tensor, "b h r c"]:
    """The first `have` summaries spread over `want` landmarks, repeated if there are too few."""
    place = torch.arange(means.shape[2], device=means.device)
    source = (place * have[:, None] // want.clamp(min=1)[:, None]).clamp(max=means.shape[2] - 1)
    return means.gather(2, source[:, None, :, None].expand_as(means))
