"""Skyformer: a Gaussian kernel in place of the softmax, approximated from a few sampled tokens by the Nystrom method.

    y_i = sum_j exp(-|q_i - k_j|^2 / 2) v_j  ~  g(q_i) W+ sum_j g(k_j)^T v_j      g_r(x) = exp(-|x - z_r|^2 / 2)

with q and k divided by c^(1/4). Half of the landmarks z_r are queries and half are keys, drawn with replacement; g is a
sum over `accumulation` of them for each r. W_rs = g_s(z_r) + ridge [r = s], and

    W+ = D P D      D = diag(W 1)^(-1/2)      P from `iterations` steps of Nystromformer's iteration on D W D

Rows of y are not normalised. Queries serve as landmarks for other queries, so the only causal form is cross attention,
with keys as its only landmarks. In evaluation landmarks are taken at the same relative positions among the real tokens
of every row, saved with the weights; training redraws them. Everything is computed in single precision or better; there
are no parameters beyond those of softmax attention.

Paper: arXiv:2111.00035. Departs from the paper in: evaluation draws nothing, the scale is that of the head (the
authors' code, `authors_skyformer`, uses c = 32 for every head width), and the starting point of the iteration is scaled
for each matrix separately.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import DecodeState
from longspan.core.errors import UsageError
from longspan.kernels.gaussian import sketch_inverse, sketched_kernel
from longspan.kernels.landmark.pieces import weighted_sums
from longspan.kernels.precision import at_least_single, without_autocast

WHOLE = 2**31


@dataclass
class Landmarks(DecodeState):
    """The landmarks of a context, and what each of them contributes to an output."""

    points: Float[Tensor, "b h a r c"]
    values: Float[Tensor, "b h r e"]


class Skyformer(HeadwiseAttention):
    meta = AttentionMeta(
        title="Skyformer",
        paper="arXiv:2111.00035",
        family="low rank",
        cost="n",
        patterns=(Pattern.NONCAUSAL_SELF, Pattern.NONCAUSAL_CROSS, Pattern.CAUSAL_CROSS),
        stochastic=True,
        remark="CAB's table denies cross attention; queries and keys are drawn side by side, or keys alone.",
    )

    draws: Int[Tensor, "a r"]  # relative positions, as integers below WHOLE so that dtype changes do not move them

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        landmarks: int = 128,
        accumulation: int = 1,
        iterations: int = 6,
        ridge: float = 0.1,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if min(landmarks, accumulation, iterations) < 1 or not ridge > 0:
            raise UsageError(
                f"landmarks, accumulation and iterations must be at least 1 and ridge above 0, got {landmarks}, "
                f"{accumulation}, {iterations} and {ridge}."
            )
        self.iterations, self.ridge = iterations, ridge
        self.register_buffer("draws", torch.randint(WHOLE, (accumulation, landmarks)))

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
            y = self._read(q, self._landmarks(k, v, key_mask, None if self.pattern.causal else q, query_mask))
        return y.to(q.dtype)

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Landmarks:
        with without_autocast(k):
            return self._landmarks(k, v, key_mask)

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e"] | None,
        state: Landmarks,
    ) -> tuple[Float[Tensor, "b h e"], Landmarks]:
        with without_autocast(q):
            return self._read(q[:, :, None], state)[:, :, 0].to(q.dtype), state

    def _landmarks(
        self,
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        key_mask: Bool[Tensor, "b m"] | None,
        q: Float[Tensor, "b h n c"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Landmarks:
        """z, the first half from q if given, and W+ g(k)^T v."""
        k, v = _scaled(k, key_mask), _erased(v, key_mask)
        draws = torch.randint_like(self.draws, WHOLE) if self.training else self.draws
        flat, half = draws.flatten(), 0 if q is None else draws.numel() // 2
        points = _drawn(k, flat[half:], key_mask)
        if q is not None:
            points = torch.cat([_drawn(_scaled(q, query_mask), flat[:half], query_mask), points], dim=2)
        points = points.unflatten(2, draws.shape)
        pooled = weighted_sums(sketched_kernel(k, points), v)  # a padded key has a value of 0
        return Landmarks(points, sketch_inverse(points, self.iterations, ridge=self.ridge) @ pooled)

    def _read(self, q: Float[Tensor, "b h n c"], landmarks: Landmarks) -> Float[Tensor, "b h n e"]:
        return sketched_kernel(_scaled(q, None), landmarks.points) @ landmarks.values


def _erased(x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b h n c"]:
    x = at_least_single(x)
    return x if mask is None else x.masked_fill(~mask[:, None, :, None], 0)


def _scaled(x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b h n c"]:
    return _erased(x, mask) / x.shape[-1] ** 0.25


def _drawn(
    x: Float[Tensor, "b h n c"], draws: Int[Tensor, " s"], mask: Bool[Tensor, "b n"] | None
) -> Float[Tensor, "b h s c"]:
    """The real tokens at these relative positions of each row."""
    n = x.shape[2]
    if mask is None:
        return x[:, :, draws * n // WHOLE]
    place = draws * mask.sum(dim=1, keepdim=True) // WHOLE
    position = torch.searchsorted(mask.cumsum(dim=1), place + 1).clamp(max=n - 1)  # a padded one in an empty row
    return x.take_along_dim(position[:, None, :, None], dim=2)
