"""Skyformer as its authors released it: redrawn at every call, scaled for heads of width 32, batch-dependent.

    y = g(q) W+ g(k)^T v      g_r(x) = exp(-|x - z_r|^2 / 2)      W_rs = g_s(z_r) + ridge [r = s]

The idea is `skyformer`. Here q and k are divided by 32^(1/4) whatever the width of a head; landmarks are drawn at every
call, in evaluation too; the start of the iteration for W+ is scaled by the largest column sum in the whole batch, so
rows depend on their neighbours where it has not converged; and padding must be on the right, since landmarks are drawn
from the first tokens of a row, as many as are real.

Code: pkuzengqi/Skyformer, src/models/attention_skyformer.py. Departs from it in: nothing.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.gaussian import sketch_inverse, sketched_kernel
from longspan.kernels.landmark.pieces import weighted_sums
from longspan.kernels.precision import at_least_single, without_autocast


class AuthorsSkyformer(HeadwiseAttention):
    meta = AttentionMeta(
        title="Skyformer (authors)",
        paper="arXiv:2111.00035",
        family="low rank",
        cost="n",
        patterns=(Pattern.NONCAUSAL_SELF,),
        stochastic=True,
        fidelity=True,
        remark="Random in evaluation, and scaled for heads of 32 channels.",
    )

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
        self.shape, self.iterations, self.ridge = (accumulation, landmarks), iterations, ridge

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        dtype, lengths = q.dtype, q.new_full((len(q),), q.shape[2], dtype=torch.long)
        with without_autocast(q):
            q, k, v = at_least_single(q) / 32**0.25, at_least_single(k) / 32**0.25, at_least_single(v)
            if key_mask is not None:
                q, k, v = (u.masked_fill(~key_mask[:, None, :, None], 0) for u in (q, k, v))
                lengths = key_mask.sum(dim=1)
            index = self.draw(lengths, q.shape[2]).flatten(1)[:, None, :, None]
            points = torch.cat([q, k], dim=2).take_along_dim(index, dim=2).unflatten(2, self.shape)
            inverse = sketch_inverse(points, self.iterations, ridge=self.ridge, norm=_of_the_batch)
            y = sketched_kernel(q, points) @ (inverse @ weighted_sums(sketched_kernel(k, points), v))
        return y.to(dtype)

    def draw(self, lengths: Int[Tensor, " b"], n: int) -> Int[Tensor, "b a r"]:
        """Positions in [q, k] for rows of these lengths: the first half in q, the others in k."""
        share = torch.rand(self.shape, device=lengths.device).flatten()
        keys = torch.arange(len(share), device=lengths.device) >= len(share) // 2
        return ((share * lengths[:, None]).long() + n * keys).unflatten(1, self.shape)


def _of_the_batch(a: Float[Tensor, "b h r r"]) -> Float[Tensor, "1 1 1 1"]:
    return a.sum(dim=-2).max()[None, None, None, None]
