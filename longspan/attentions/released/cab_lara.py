"""LARA as CAB released it: padding stays in sums that should exclude it, and rows use the masks of other rows.

    y_i = sum_r w_ir f_r      f_r = sum_j softmax_j(xi(k_j, omega_r)) v_j
    w_i = softmax_r(mu_r . q_i / sqrt(c) + xi(q_i, omega_r) + log sum_j exp xi(k_j, omega_r) - xi(mu_r, omega_r))

with xi(x, omega) = (omega . x - |x|^2 / 2) / sqrt(c), mu_r = the mean of the r-th of `landmarks` segments of the
queries + that of the keys, and omega_r = mu_r, with noise of variance 1 added while training. Without padding this is
`lara(proposal=means, weighting=query)`, a different estimator from that of LARA's authors. With padding the release
removes padded keys only from the softmax of f: they stay in the sum over j of w, and segments are cut over the padded
width. Moreover the mask is laid out heads first and the data batch first: head h of row b uses the mask of row
(b H + h) mod B, for H heads and B rows.

Code: Shark-NLP/CAB, modules/lara.py. Departs from it in: if every key is hidden the output is 0, not NaN.
"""

from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.masked import tile_heads_first
from longspan.kernels.pooling import segment_means
from longspan.kernels.precision import at_least_single, without_autocast


class CABLARA(HeadwiseAttention):
    meta = AttentionMeta(
        title="LARA (CAB)",
        paper="arXiv:2210.07661",
        family="kernel",
        cost="n",
        patterns=(Pattern.NONCAUSAL_SELF,),
        stochastic=True,
        fidelity=True,
        remark="Padding counts in the weights and in the landmarks, and rows of a batch are masked with one another's.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, landmarks: int = 64, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if landmarks < 1:
            raise UsageError(f"cab_lara needs at least 1 landmark, got landmarks={landmarks}.")
        self.landmarks = landmarks

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
            q, k, scale = at_least_single(q), at_least_single(k), q.shape[-1] ** -0.5
            (mean_q, exists), (mean_k, _) = (segment_means(u, self.landmarks, longer="last") for u in (q, k))
            mu = mean_q + mean_k
            omega = mu + self.noise(mu) if self.training else mu
            xi_keys = scale * (omega @ k.mT - rearrange(k.square().sum(dim=-1) / 2, "b h m -> b h 1 m"))
            own = scale * ((omega * mu).sum(dim=-1) - mu.square().sum(dim=-1) / 2)
            logits = scale * (q @ (mu + omega).mT) + (xi_keys.logsumexp(dim=-1) - own)[:, :, None]
            w = logits.masked_fill(~exists[:, None, None], -torch.inf).softmax(dim=-1)
            if key_mask is None:
                f = xi_keys.softmax(dim=-1).to(v.dtype) @ v
            else:
                seen = tile_heads_first(key_mask, q.shape[1])[:, :, None]
                xi_keys = xi_keys.masked_fill(~seen, torch.finfo(k.dtype).min)
                f = xi_keys.softmax(dim=-1).masked_fill(~seen, 0).to(v.dtype) @ v
            return w.to(v.dtype) @ f

    def noise(self, mu: Float[Tensor, "b h r c"]) -> Float[Tensor, "b h r c"]:
        """What is added to the proposal mean to draw a sample while training."""
        return torch.randn_like(mu)
