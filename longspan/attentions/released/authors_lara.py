"""LARA as its authors released it: padding counts in the landmarks, and queries compete with one another.

    y_i = sum_r w_ir f_r      f_r = sum_j softmax_j(xi(k_j, omega_r)) v_j
    w_i = softmax_r(log alpha_ir + xi(q_i, omega_r) + log sum_j exp xi(k_j, omega_r) - xi(mu_r, omega_r))

with xi, mu, omega, `proposal`, `antithetic` and b_r as in `lara`, and

    weighting = "optimal"  alpha_ir = max(b_r + beta (t_ir - mean_r t_ir), 1e-8), t_r = softmax_i(q'_r . q_i / sqrt(c))
    weighting = "balance"  alpha_ir = b_r
    weighting = "biased"   alpha_ir = b_r exp(mu_r . q_i / sqrt(c))

`samples` samples are drawn from each proposal; an antithetic pair is one sample and its mirror image, whatever
`samples` says. Segments are cut over the padded width, where padded tokens count as zeros; they also count as zeros in
the softmax of t, which `lara` normalises over the landmarks.

Code: HKUNLP/efficient-attention, efficient_attention/lara.py. Departs from it in: a row without real keys outputs 0.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.pooling import segment_means
from longspan.kernels.precision import at_least_single, without_autocast


class AuthorsLARA(HeadwiseAttention):
    meta = AttentionMeta(
        title="LARA (authors)",
        paper="arXiv:2204.04667",
        family="kernel",
        cost="n",
        patterns=(Pattern.NONCAUSAL_SELF,),
        stochastic=True,
        fidelity=True,
        remark="Padding counts in the landmarks and in the comparison of queries.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        landmarks: int = 64,
        proposal: Literal["projected", "pooled", "means"] = "projected",
        weighting: Literal["optimal", "balance", "biased"] = "optimal",
        beta: float = 1.0,
        antithetic: bool = False,
        samples: int = 1,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if min(landmarks, samples) < 1:
            raise UsageError(f"authors_lara needs at least 1 of each, got landmarks={landmarks} and samples={samples}.")
        self.landmarks, self.proposal, self.weighting, self.beta = landmarks, proposal, weighting, beta
        self.antithetic, self.samples = antithetic, 2 if antithetic else samples
        self.summarise_query = None if proposal == "means" else _summary(self.head_dim)
        self.summarise_key = None if proposal == "means" else _summary(self.head_dim)

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        dtype, scale = v.dtype, q.shape[-1] ** -0.5
        with without_autocast(q):
            q, k, v = at_least_single(q), at_least_single(k), at_least_single(v)
            if key_mask is not None:
                q, k, v = (u.masked_fill(~key_mask[:, None, :, None], 0) for u in (q, k, v))
            center = self._summaries(q, self.summarise_query)
            mu = center + self._summaries(k, self.summarise_key)
            omega = mu
            if self.training:
                noise = self.noise(mu if self.antithetic else mu.repeat(1, 1, self.samples, 1))
                noise = torch.cat([noise, -noise], dim=2) if self.antithetic else noise
                center, mu = (u.repeat(1, 1, self.samples, 1) for u in (center, mu))
                omega = mu + noise
            xi_keys, xi_means = (
                scale * (omega @ x.mT - x.square().sum(dim=-1)[:, :, None] / 2) for x in (k, mu)
            )  # [b h r m] and [b h r r]
            if key_mask is not None:
                xi_keys = xi_keys.masked_fill(~key_mask[:, None, None], torch.finfo(k.dtype).min / 2)
            own, log_b = (x.diagonal(dim1=-2, dim2=-1) for x in (xi_means, xi_means.log_softmax(dim=-1)))
            logits = scale * q @ omega.mT + (xi_keys.logsumexp(dim=-1) - own)[:, :, None]
            if self.weighting == "optimal":
                t = (scale * q @ center.mT).softmax(dim=2)
                alpha = log_b.exp()[:, :, None] + self.beta * (t - t.mean(dim=-1, keepdim=True))
                logits = logits + alpha.clamp(min=1e-8).log()
            else:
                logits = logits + log_b[:, :, None]
                if self.weighting == "biased":
                    logits = logits + scale * q @ mu.mT
            return (logits.softmax(dim=-1) @ (xi_keys.softmax(dim=-1) @ v)).to(dtype)

    def noise(self, mu: Float[Tensor, "b h r c"]) -> Float[Tensor, "b h r c"]:
        """What is added to the proposal mean to draw a sample while training."""
        return torch.randn_like(mu)

    def _summaries(self, x: Float[Tensor, "b h n c"], summary: nn.ModuleDict | None) -> Float[Tensor, "b h r c"]:
        if summary is not None and self.proposal == "projected":
            x = summarise(x, summary)
        means, _ = segment_means(x, min(self.landmarks, x.shape[2]), longer="last")
        return means if summary is None or self.proposal == "projected" else summarise(means, summary)


def _summary(channels: int) -> nn.ModuleDict:
    linear = nn.Linear(channels, channels)
    nn.init.normal_(linear.weight, std=0.02)  # a truncation at 100 deviations has no effect
    nn.init.zeros_(linear.bias)
    return nn.ModuleDict({"linear": linear, "norm": nn.LayerNorm(channels)})


def summarise(x: Float[Tensor, "b h n c"], summary: nn.ModuleDict) -> Float[Tensor, "b h n c"]:
    """LayerNorm(Linear(x))."""
    weight, bias, gain, shift = (p.to(x.dtype) for p in summary.parameters())
    return F.layer_norm(F.linear(x, weight, bias), gain.shape, gain, shift)
