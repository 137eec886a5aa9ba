"""Performer (FAVOR+): the softmax kernel as a mean of positive random features; keys and values are summed once.

    y_i = phi(q_i) S / phi(q_i) z      S = sum_j phi(k_j) v_j^T      z = sum_j phi(k_j)
    phi(x) = exp(W x' - |x'|^2 / 2) / sqrt(r)      x' = x / c^(1/4)      E[phi(q) . phi(k)] = exp(q . k / sqrt(c))

over the real keys j, in causal self attention over j <= i. The r rows of W are orthogonal in blocks of c rows, their
lengths drawn anew as those of Gaussian vectors (`scaling="chi"`) or all sqrt(c) (`scaling="sqrt"`). `kernel="relu"`
takes phi(x) = relu(W x') + eps instead. W is drawn once, saved with the weights, and never redrawn; `features` is r,
floor(c ln c) unless given.

Features live as logarithms until a maximum is taken off, which cancels in y: for the queries the maximum of each
position; for the keys the maximum of each feature over all of them, or in causal self attention the running maximum m_t
of all features, where the pair (i, j) is weighted by exp(m_j - m_i). So nothing overflows and no row sees later keys.

Departs from the paper in: nothing is added to the features. With `eps` above 0 the softmax kernel is computed as
released (`release="port"` the common PyTorch port, 1e-4; `release="authors"` the authors' JAX code, 1e-6): eps added
after taking one maximum over all keys off. That is a fidelity setting: as causal self attention it lets later keys into
earlier rows, and it has no decoding state. Paper: arXiv:2009.14794.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, DecodeState, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.causal_linear import causal_linear
from longspan.kernels.favor import favor, log_features
from longspan.kernels.favor.reference import common, faintest, hide, normalised, relative
from longspan.kernels.feature_attention import feature_attention, with_ones
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
        release: Literal["port", "authors"] = "port",
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        self.kernel, self.release = kernel, release
        self.eps = (1e-3 if kernel == "relu" else 0.0) if eps is None else eps
        if features is None:  # the paper's rate: enough for a small error, whatever the length
            features = max(1, int(self.head_dim * math.log(self.head_dim)))
        if features < 1:
            raise UsageError(f"Performer needs at least one feature, got features={features}.")
        if self.eps < 0 or (kernel == "relu" and self.eps == 0):
            raise UsageError(
                f"Features must be positive, got eps={self.eps} with kernel={kernel!r}; choose a larger eps."
            )
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
        with without_autocast(q):
            if self._as_released:
                return self._attend_as_released(q, k, v, key_mask).to(v.dtype)
            causal = self.pattern is Pattern.CAUSAL_SELF
            if self.kernel == "softmax":
                return favor(q, k, v, self.projection, causal=causal, key_mask=key_mask)
            phi_q, phi_k = self._rectified(q), self._rectified(k)
            floor = faintest(phi_q.dtype)
            return feature_attention(phi_q, phi_k, v, causal=causal, key_mask=key_mask, floor=floor)

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Features | None:
        if self._as_released:  # its maximum runs over tokens that are not there yet
            return None
        with without_autocast(k):
            return self._summary(k, v, key_mask)

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e"] | None,
        state: Features,
    ) -> tuple[Float[Tensor, "b h e"], Features]:
        with without_autocast(q):
            if k is not None and v is not None:
                log_k = self.log_features(k)
                largest = torch.maximum(state.largest, log_k)
                fade, new = (state.largest - largest).exp()[..., None], (log_k - largest).exp()[..., None]
                state = Features(state.memory * fade + new * with_ones(v)[:, :, None], largest)
            return self._read(q[:, :, None], state)[:, :, 0].to(q.dtype), state

    def log_features(self, x: Float[Tensor, "b h *n c"]) -> Float[Tensor, "b h *n r"]:
        """The logarithm of phi, without the constant 1 / sqrt(r) that cancels."""
        return self._rectified(x).log() if self.kernel == "relu" else log_features(x, self.projection)

    def _rectified(self, x: Float[Tensor, "b h *n c"]) -> Float[Tensor, "b h *n r"]:
        x = at_least_single(x) / x.shape[-1] ** 0.25
        return F.relu(x @ self.projection.to(x.dtype).mT) + self.eps

    @property
    def _as_released(self) -> bool:
        return self.kernel == "softmax" and self.eps > 0

    def _summary(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], key_mask: Bool[Tensor, "b m"] | None
    ) -> Features:
        phi_k, largest = common(hide(self.log_features(k), key_mask))
        return Features(phi_k.mT @ with_ones(v), largest)

    def _read(self, q: Float[Tensor, "b h n c"], state: Features) -> Float[Tensor, "b h n e"]:
        return normalised(relative(self.log_features(q) + state.largest[:, :, None])[0] @ state.memory)

    def _attend_as_released(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        key_mask: Bool[Tensor, "b m"] | None,
    ) -> Float[Tensor, "b h n e"]:
        def features(x: Tensor, over: tuple[int, ...], mask: Tensor | None = None) -> Tensor:
            x = at_least_single(x) / x.shape[-1] ** 0.25
            projected = x @ self.projection.to(x.dtype).mT
            visible = projected if mask is None else projected.masked_fill(_hidden(mask), torch.finfo(x.dtype).min / 4)
            largest = visible.amax(dim=over, keepdim=True)
            largest = largest.detach() if self.release == "port" else largest
            phi = (visible - x.square().sum(dim=-1, keepdim=True) / 2 - largest).exp() + self.eps
            phi = phi / self.projection.shape[0] ** 0.5
            return phi if mask is None else phi.masked_fill(_hidden(mask), 0)

        phi_q, phi_k = features(q, over=(-1,)), features(k, over=(-1, -2), mask=key_mask)
        if self.pattern is Pattern.CAUSAL_SELF:
            y = causal_linear(phi_q, phi_k, with_ones(v))
        else:
            y = phi_q @ (phi_k.mT @ with_ones(v))
        y, denominator = y[..., :-1], y[..., -1:]
        if self.release == "authors":
            denominator = denominator + 2e-6 * (denominator.abs() <= 1e-6)
        elif self.pattern is Pattern.CAUSAL_SELF:
            denominator = denominator + 1e-6 * phi_q.sum(dim=-1, keepdim=True)
        return y / torch.where(denominator > 0, denominator, 1)


def draw_projection(features: int, width: int, scaling: Literal["chi", "sqrt"]) -> Float[Tensor, "r c"]:
    """Random rows, orthogonal in blocks of `width`; torch's global seed decides which."""
    generator = torch.Generator().manual_seed(int(torch.randint(2**62, (), device="cpu")))
    blocks = -(-features // width)
    q, r = torch.linalg.qr(torch.randn(blocks, width, width, generator=generator, device="cpu"))
    signs = r.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # without them the rows would not be uniform on the sphere
    rows = rearrange((q * signs).mT, "block row c -> (block row) c")[:features]
    if scaling == "sqrt":
        return rows * width**0.5
    return rows * torch.randn(features, width, generator=generator, device="cpu").norm(dim=1, keepdim=True)


def _hidden(mask: Bool[Tensor, "b m"]) -> Bool[Tensor, "b 1 m 1"]:
    return ~rearrange(mask, "b m -> b 1 m 1")
