"""Random feature attention: the Gaussian kernel of normalised queries and keys as a mean of random Fourier features.

    y_i = phi(q_i) S / phi(q_i) z      S = sum_j phi(k_j) v_j^T      z = sum_j phi(k_j)
    phi(x) = [sin(R x'), cos(R x')] / sqrt(r)      R = (sigma * W) / tau      x' = x / (|x| + 1e-3)
    E[phi(q) . phi(k)] = exp(-|q' - k'|^2 / (2 tau^2))      at sigma = 1

over the real keys j, in causal self attention over j <= i. W [r, c] is Gaussian for each head, redrawn at every call in
training; the one for evaluation and decoding is drawn once and saved with the weights. sigma is learned, a factor for
each channel. `features` is r; each gives a sine and a cosine.

`gate=True` lets the past of causal self attention decay, by g_t = sigmoid(w x_t + b) for each head; the other patterns
have no token order, and no gate:

    S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) v_t^T      z_t = g_t z_{t-1} + (1 - g_t) phi(k_t)

Sines and cosines can be negative, and so can the denominator, whose magnitude is kept from falling below `floor`
("signed"). The kernel itself is at least exp(-2 / tau^2), so a negative denominator is an estimation error, and rare
for a W to which nothing was fitted. If W stays fixed in training, queries move to where denominators change sign: those
of a small language model were below 0 for half of the tokens after 80 updates, and outputs were in the thousands. The
released code has `scale` = 0.1 in place of 1 / sqrt(r), no gate, and a denominator max(z, 1) ("positive") or
max(|z|, floor) ("absolute"), depending on the code path; with that scale and a floor of 1 weights may add up to less
than one.

It has dim more parameters than softmax attention, with the gate another (dim + 1) heads. Paper: arXiv:2103.02143.
Departs from the paper in: W is redrawn each time, where the authors draw from 500 matrices.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, GatedValue, HeadwiseAttention, Pattern
from longspan.attentions.states import DecodeState
from longspan.core.errors import UsageError
from longspan.kernels import feature_map
from longspan.kernels.linear_attention import final_state, linear_attention, linear_attention_step, with_ones
from longspan.kernels.precision import at_least_single, without_autocast


@dataclass
class Sums(DecodeState):
    """S with z as its last column."""

    memory: Float[Tensor, "b h two_r e_plus_1"]


class RFA(HeadwiseAttention):
    meta = AttentionMeta(
        title="RFA",
        paper="arXiv:2103.02143",
        family="kernel",
        cost="n",
        rowwise=True,
        patterns=ALL_PATTERNS,
        stochastic=True,
        version=2,  # trains with features that are redrawn at every update
    )

    projection: Float[Tensor, "h r c"]

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        features: int = 64,
        tau: float = 1.0,
        gate: bool = False,
        scale: float | None = None,
        denominator: Literal["signed", "absolute", "positive"] = "signed",
        floor: float = 1e-6,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if features < 1 or tau <= 0 or floor <= 0:
            found = f"features={features}, tau={tau} and floor={floor}"
            raise UsageError(f"rfa needs a feature, and a positive tau and floor, got {found}.")
        if scale is not None and scale <= 0:
            raise UsageError(f"rfa multiplies its features by a positive scale, got scale={scale}.")
        self.tau, self.denominator, self.floor = tau, denominator, floor
        self.scale = features**-0.5 if scale is None else scale
        self.gated = gate and self.pattern is Pattern.CAUSAL_SELF
        if self.gated:
            self.value = GatedValue(dim, self.inner, heads, bias=self.value.bias is not None)
        self.sigma = nn.Parameter(torch.ones(heads, 1, self.head_dim))
        self.register_buffer("projection", torch.randn(heads, features, self.head_dim))

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e_"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        projection = torch.randn_like(self.projection) if self.training else self.projection
        causal = self.pattern is Pattern.CAUSAL_SELF
        how: dict[str, Any] = {"causal": causal, "key_mask": key_mask, "normalize": False}
        if self.gated or self.denominator == "absolute":
            phi_k, values, how["decay"] = self._written(k, v, projection)
            y = linear_attention(self.waves(at_least_single(q), projection), phi_k, values, **how)
            return self._divided(y).to(v.dtype)
        how |= {"normalize": True, "floor": self.floor, "signed": self.denominator == "signed"}
        return linear_attention(self.waves(q, projection), self.waves(k, projection), v, **how)

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e_"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Sums:
        with without_autocast(k):
            phi_k, values, decay = self._written(k, v, self.projection)
            return Sums(final_state(phi_k, values, key_mask=key_mask, decay=decay, normalize=False))

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e_"] | None,
        state: Sums,
    ) -> tuple[Float[Tensor, "b h e"], Sums]:
        with without_autocast(q):
            phi_q = self.waves(at_least_single(q[:, :, None]), self.projection)[:, :, 0]
            phi_k = values = decay = None
            if k is not None and v is not None:
                phi_k, values, decay = self._written(k[:, :, None], v[:, :, None], self.projection)
                phi_k, values = phi_k[:, :, 0], values[:, :, 0]
                decay = None if decay is None else decay[:, :, 0]
            y, memory = linear_attention_step(phi_q, phi_k, values, state.memory, decay=decay, normalize=False)
            return self._divided(y).to(q.dtype), Sums(memory)

    def waves(self, x: Float[Tensor, "b h n c"], projection: Float[Tensor, "h r c"]) -> Float[Tensor, "b h n two_r"]:
        """phi, computed in float32 or better and returned in the dtype of x."""
        return feature_map.waves(x, self.sigma * projection / self.tau, self.scale)

    def _written(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e_"], projection: Float[Tensor, "h r c"]
    ) -> tuple[Float[Tensor, "b h m two_r"], Float[Tensor, "b h m e_plus_1"], Float[Tensor, "b h m"] | None]:
        """What each token adds to the sums, phi(k) and (v, 1), and the logarithm of the decay it applies to them."""
        phi_k = self.waves(at_least_single(k), projection)
        if not self.gated:
            return phi_k, with_ones(v), None
        gate = at_least_single(v[..., -1])
        return phi_k * (-gate).sigmoid()[..., None], with_ones(v[..., :-1]), F.logsigmoid(gate)

    def _divided(self, y: Float[Tensor, "b h *n e_plus_1"]) -> Float[Tensor, "b h *n e"]:
        z = at_least_single(y[..., -1:])
        size = (z if self.denominator == "positive" else z.abs()).clamp(min=self.floor)
        return y[..., :-1] / (torch.where(z < 0, -size, size) if self.denominator == "signed" else size)
