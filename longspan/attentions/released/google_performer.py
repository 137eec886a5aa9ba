"""Performer as its authors and the common PyTorch port released it: eps added to features, so that the future leaks.

    y_i = phi(q_i) S / phi(q_i) z      S = sum_j phi(k_j) v_j^T      z = sum_j phi(k_j)
    phi(x) = (exp(W x' - |x'|^2 / 2 - max) + eps) / sqrt(r)      x' = x / c^(1/4)

over the real keys j, in causal self attention over j <= i, with max over the features W x' of each query, and over
those of all keys of a head. The idea (`performer`) is features whose products are the softmax kernel on average; adding
eps changes that kernel, and most for features that are small compared with the largest. In causal self attention it
leaks later keys into earlier rows, through the maximum, and leaves no state to decode with.

`release` chooses whose details: "authors" the JAX code (eps 1e-6, gradients through the maximum, 2e-6 added to tiny
denominators), "port" the PyTorch port (eps 1e-4, no gradient through the maximum, 1e-6 added to z in causal self
attention). `features` is r, floor(c ln c) unless given.

Code: google-research/google-research, performer/fast_attention/jax; lucidrains/performer-pytorch. Departs from them in:
padding has no features (there it keeps its key), W is never redrawn.
"""

import math
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.favor import draw_projection, stabilized_features
from longspan.kernels.linear_attention import linear_attention, with_ones
from longspan.kernels.precision import without_autocast


class GooglePerformer(HeadwiseAttention):
    meta = AttentionMeta(
        title="Performer (Google)",
        paper="arXiv:2009.14794",
        family="kernel",
        cost="n",
        rowwise=True,
        patterns=ALL_PATTERNS,
        stochastic=True,
        fidelity=True,
        remark="Adds eps to features after taking one maximum over all keys off: causal rows depend on later keys.",
    )

    projection: Float[Tensor, "r c"]

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        features: int | None = None,
        release: Literal["authors", "port"] = "authors",
        eps: float | None = None,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if features is None:
            features = max(1, int(self.head_dim * math.log(self.head_dim)))
        self.release = release
        self.eps = {"authors": 1e-6, "port": 1e-4}[release] if eps is None else eps
        if features < 1 or self.eps <= 0:
            raise UsageError(
                f"google_performer needs a feature and a positive eps, got features={features} and eps={self.eps}."
            )
        self.register_buffer("projection", draw_projection(features, self.head_dim))

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        W, eps, port, causal = self.projection, self.eps, self.release == "port", self.pattern is Pattern.CAUSAL_SELF
        with without_autocast(q):
            phi_q = stabilized_features(q, W, eps, over=(-1,), detach=port)
            phi_k = stabilized_features(k, W, eps, over=(-1, -2), mask=key_mask, detach=port)
            y = linear_attention(phi_q, phi_k, with_ones(v), causal=causal, normalize=False, impl="reference")
            y, denominator = y[..., :-1], y[..., -1:]
            if not port:
                denominator = denominator + 2e-6 * (denominator.abs() <= 1e-6)
            elif causal:
                denominator = denominator + 1e-6 * phi_q.sum(dim=-1, keepdim=True)
            return (y / torch.where(denominator > 0, denominator, 1)).to(v.dtype)
