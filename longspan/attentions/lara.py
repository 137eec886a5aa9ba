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
from longspan.kernels.lopsided import in_pieces
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
        if proposal != "means":
            self.summarise_query, self.summarise_key = Summary(self.head_dim), Summary(self.head_dim)

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
            f = self._factors(q, k, key_mask, query_mask)
        v = in_pieces(v if key_mask is None else _erased(v, key_mask))
        written = ((f.writes.to(v.dtype) @ v).sum(dim=2) / f.written).to(v.dtype)
        y = in_pieces(f.reads.to(v.dtype)) @ written[:, :, None]
        return (y.flatten(2, 3) / f.read).to(v.dtype)

    def weights(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b h n m"]:
        with without_autocast(q):
            f = self._factors(q, k, key_mask, None if self.pattern.cross else key_mask)
            writes = rearrange(f.writes, "b h g r s -> b h r (g s)") / f.written
            return (f.reads / f.read @ writes).to(q.dtype)

    def noise(self, mu: Float[Tensor, "b h r c"]) -> Float[Tensor, "b h r c"]:
        """What a sample adds to the mean of its proposal while training."""
        return torch.randn_like(mu)

    def _factors(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        key_mask: Bool[Tensor, "b m"] | None,
        query_mask: Bool[Tensor, "b n"] | None,
    ) -> "Factors":
        q, k, scale = at_least_single(q), at_least_single(k), q.shape[-1] ** -0.5
        q = q if query_mask is None else _erased(q, query_mask)
        k = k if key_mask is None else _erased(k, key_mask)
        center, mu, exists = self._proposals(q, k, key_mask, query_mask)
        omega = mu
        if self.training:
            noise = self.noise(mu)
            omega = mu + noise
            if self.antithetic:
                omega = torch.cat([omega, mu - noise], dim=2)
                center, mu, exists = (torch.cat([u, u], dim=-2 if u.ndim == 4 else -1) for u in (center, mu, exists))
        complete = key_mask is None and query_mask is None and min(q.shape[2], k.shape[2]) >= self.landmarks
        exists = exists | ~exists.any(dim=-1, keepdim=True)  # a row without any is finite too, and writes nothing
        exists = rearrange(exists, "b r -> b 1 1 r")

        least = torch.finfo(k.dtype).min
        hidden = None if key_mask is None else ~in_pieces(key_mask[:, None])[..., None, :]
        xi_keys = _xi(in_pieces(k), (scale * omega)[:, :, None], scale)  # "b h g r s"
        xi_keys = xi_keys if hidden is None else xi_keys.masked_fill(hidden, least)
        largest = xi_keys.detach().amax(dim=(2, 4), keepdim=True)
        writes = (xi_keys - largest).exp()
        writes = writes if hidden is None else writes.masked_fill(hidden, 0)
        written = writes.sum(dim=(2, 4))[..., None]
        written = torch.where(written > 0, written, 1)

        own = scale * ((omega * mu).sum(dim=-1) - mu.square().sum(dim=-1) / 2)  # xi(mu_r, omega_r)
        shift = rearrange(written.log() + largest[:, :, 0], "b h r 1 -> b h 1 r") - own[:, :, None]
        if self.weighting != "query":
            everybody = _xi(mu, scale * omega, scale).masked_fill(~exists, least)  # "b h r r"
            log_b = (own - everybody.logsumexp(dim=-1))[:, :, None]
        if self.weighting in ("balance", "biased"):
            shift = shift + log_b
        direction = omega + mu if self.weighting in ("biased", "query") else omega
        logits = q @ (scale * direction).mT + shift  # |q|^2 is the same for all r
        reads = (logits if complete else logits.masked_fill(~exists, least)).softmax(dim=-1)
        if self.weighting != "optimal":
            return Factors(reads, torch.ones_like(reads[..., :1]), writes, written)
        reads = reads * self._alpha(q, scale * center, log_b.exp(), exists, complete, query_mask)
        return Factors(reads, reads.sum(dim=-1, keepdim=True), writes, written)

    def _proposals(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        key_mask: Bool[Tensor, "b m"] | None,
        query_mask: Bool[Tensor, "b n"] | None,
    ) -> tuple[Float[Tensor, "b h r c"], Float[Tensor, "b h r c"], Bool[Tensor, "b r"]]:
        """q', mu, and which landmarks a row has."""
        cut_q, cut_k = (query_mask, key_mask) if self.segments == "real" else (None, None)
        if self.proposal == "projected":
            q, k = self.summarise_query(q), self.summarise_key(k)
        center, in_q = segment_means(q, self.landmarks, cut_q, longer="last")
        other, in_k = segment_means(k, self.landmarks, cut_k, longer="last")
        if self.proposal == "pooled":
            center, other = self.summarise_query(center), self.summarise_key(other)
        if not self.pattern.cross:
            return center, center + other, in_q
        exists = in_q | in_k
        count = exists.sum(dim=1)
        center, other = _stretched(center, in_q.sum(dim=1), count), _stretched(other, in_k.sum(dim=1), count)
        return center, center + other, exists

    def _alpha(
        self,
        q: Float[Tensor, "b h n c"],
        center: Float[Tensor, "b h r c"],
        b: Float[Tensor, "b h 1 r"],
        exists: Bool[Tensor, "b 1 1 r"],
        complete: bool,
        query_mask: Bool[Tensor, "b n"] | None,
    ) -> Float[Tensor, "b h n r"]:
        """The weights called optimal."""
        t, least, count = q @ center.mT, torch.finfo(q.dtype).min, exists.sum(dim=-1, keepdim=True)
        if self.compare == "landmarks":
            t = (t if complete else t.masked_fill(~exists, least)).softmax(dim=-1)
            mean = 1 / count  # they add up to 1
        else:
            if query_mask is not None and self.segments == "real":
                t = t.masked_fill(~query_mask[:, None, :, None], least)
            t = t.softmax(dim=2)
            mean = (t * exists).sum(dim=-1, keepdim=True) / count
        return (b - self.beta * mean + self.beta * t).clamp(min=1e-8)


class Factors(NamedTuple):
    """Two matrices whose product is the matrix of attention weights, once the rows of both are divided by their sums.

    Nothing is written where there is no real key.
    """

    reads: Float[Tensor, "b h n r"]
    read: Float[Tensor, "b h n 1"]
    writes: Float[Tensor, "b h g r s"]  # the keys in pieces
    written: Float[Tensor, "b h r 1"]


class Summary(nn.Module):
    """LayerNorm(Linear(x)), the same for all heads, in the precision of x."""

    def __init__(self, channels: int):
        super().__init__()
        self.linear, self.norm = nn.Linear(channels, channels), nn.LayerNorm(channels)
        nn.init.trunc_normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h n c"]:
        weight, bias, gain, shift = (p.to(x.dtype) for p in (*self.linear.parameters(), *self.norm.parameters()))
        return F.layer_norm(F.linear(x, weight, bias), gain.shape, gain, shift, self.norm.eps)


def _xi(x: Float[Tensor, "*b m c"], omega: Float[Tensor, "*#b r c"], scale: float) -> Float[Tensor, "*b r m"]:
    """The logarithm of a random feature of each x at each omega, which is scaled already."""
    return omega @ x.mT - scale / 2 * torch.linalg.vector_norm(x, dim=-1).square()[..., None, :]


def _stretched(
    means: Float[Tensor, "b h r c"], have: Int[Tensor, " b"], want: Int[Tensor, " b"]
) -> Float[Tensor, "b h r c"]:
    """The first `have` summaries spread over `want` landmarks, each of them several times if there are too few."""
    place = torch.arange(means.shape[2], device=means.device)
    source = (place * have[:, None] // want.clamp(min=1)[:, None]).clamp(max=means.shape[2] - 1)
    return means.gather(2, source[:, None, :, None].expand_as(means))


def _erased(x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"]) -> Float[Tensor, "b h n c"]:
    return x.masked_fill(~mask[:, None, :, None], 0)
