"""Performer (FAVOR+): the softmax kernel as a mean of positive random features; keys and values are summed once.

    y_i = phi(q_i) S / phi(q_i) z      S = sum_j phi(k_j) v_j^T      z = sum_j phi(k_j)
    phi(x) = exp(W x' - |x'|^2 / 2) / sqrt(r)      x' = x / c^(1/4)      E[phi(q) . phi(k)] = exp(q . k / sqrt(c))

over the real keys j, in causal self attention over j <= i. The r rows of W are orthogonal in blocks of c rows, their
lengths drawn anew as those of Gaussian vectors (`scaling="chi"`) or all sqrt(c) (`scaling="sqrt"`). `kernel="relu"`
takes phi(x) = relu(W x') + eps instead. W is drawn once, saved with the weights, and never redrawn; `features` is r,
floor(c ln c) unless given.

Features are kept as logarithms until a maximum is subtracted, which cancels in y: for the queries the maximum at each
position; for the keys the maximum of each feature over all keys, or in causal self attention the running maximum m_t of
all features, where the pair (i, j) is weighted by exp(m_j - m_i). So nothing overflows and no row sees later keys.

Paper: arXiv:2009.14794. Departs from the paper in: nothing is added to the features of the softmax kernel, since that
leaks later keys into earlier rows; `google_performer` adds it as released.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import DecodeState
from longspan.core.errors import UsageError
from longspan.kernels.favor import draw_projection, favor, log_features
from longspan.kernels.favor.reference import mask_logs, read_summary, smallest_sum, summarize, update_summary
from longspan.kernels.linear_attention import linear_attention
from longspan.kernels.precision import at_least_single, without_autocast


@dataclass
class Features(DecodeState):
    """S with z as its last column, each feature divided by the exponential of its largest logarithm so far."""

    memory: Float[Tensor, "b h r e_plus_1"]
    largest: Float[Tensor, "b h r"]


class Performer(HeadwiseAttention):
    meta = AttentionMeta(
        title="Performer",
        paper="arXiv:2009.14794",
        family="kernel",
        cost="n",
        rowwise=True,
        patterns=ALL_PATTERNS,
        stochastic=True,
        remark="CAB's table denies causal self attention; only the released stabiliser (eps > 0) leaks the future.",
    )

    projection: Float[Tensor, "r c"]

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        features: int | None = None,
        kernel: Literal["softmax", "relu"] = "softmax",
        scaling: Literal["chi", "sqrt"] = "chi",
        eps: float | None = None,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if features is None:  # the paper's rate, enough for a small error at any length
            features = max(1, int(self.head_dim * math.log(self.head_dim)))
        if features < 1:
            raise UsageError(f"Performer needs at least one feature, got features={features}.")
        if kernel == "softmax" and eps:
            raise UsageError(f"Performer adds nothing to softmax features, got eps={eps}; google_performer does.")
        if kernel == "relu" and eps is not None and eps <= 0:
            raise UsageError(f"Features must be positive, got eps={eps} with kernel={kernel!r}; choose a larger eps.")
        self.kernel, self.eps = kernel, 1e-3 if eps is None else eps
        self.register_buffer("projection", draw_projection(features, self.head_dim, scaling))

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        causal = self.pattern is Pattern.CAUSAL_SELF
        if self.kernel == "softmax":
            return favor(q, k, v, self.projection, causal=causal, key_mask=key_mask)
        with without_autocast(q):
            phi_q, phi_k = self._relu_features(q), self._relu_features(k)
        return linear_attention(phi_q, phi_k, v, causal=causal, key_mask=key_mask, floor=smallest_sum(phi_q.dtype))

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Features:
        with without_autocast(k):
            return Features(*summarize(mask_logs(self.log_features(k), key_mask), v))

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e"] | None,
        state: Features,
    ) -> tuple[Float[Tensor, "b h e"], Features]:
        with without_autocast(q):
            if k is not None and v is not None:
                state = Features(*update_summary(state.memory, state.largest, self.log_features(k), v))
            y = read_summary(self.log_features(q)[:, :, None], state.memory, state.largest)
            return y[:, :, 0].to(q.dtype), state

    def log_features(self, x: Float[Tensor, "b h *n c"]) -> Float[Tensor, "b h *n r"]:
        """The logarithm of phi, without the constant 1 / sqrt(r), which cancels."""
        return self._relu_features(x).log() if self.kernel == "relu" else log_features(x, self.projection)

    def _relu_features(self, x: Float[Tensor, "b h *n c"]) -> Float[Tensor, "b h *n r"]:
        x = at_least_single(x) / x.shape[-1] ** 0.25
        return F.relu(x @ self.projection.to(x.dtype).mT) + self.eps
