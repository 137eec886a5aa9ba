"""Performer as Long Range Arena released it: a ReLU in place of random features, and masks ignored.

    y_i = phi(q_i) S / phi(q_i) z      S = sum_j phi(k_j) v_j^T      z = sum_j phi(k_j)      phi(x) = relu(x) + 0.001

over all keys j, padding included. The idea (`performer`) is features whose products are the softmax kernel on average;
here there are neither random directions nor a scale, and nothing approximates that kernel. The release runs Text,
Retrieval, Image and Pathfinder with this. `features` selects what it runs ListOps with, the softmax features of the
paper, but only two of them (`features=2`):

    phi(x) = (exp(W x' - |x'|^2 / 2 - max) + 1e-6) / sqrt(features)      x' = x / c^(1/4)

with max over the features of each query, and over all features of all keys. W is redrawn at every call, seeded with the
sum of all queries, so the rows of a batch affect one another. Neither form has attention dropout.

Code: google-research/long-range-arena, models/performer. Departs from it in: W is drawn with torch's generator, not
JAX's.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.favor import draw_projection, stabilized_features
from longspan.kernels.precision import at_least_single, without_autocast

STABILISER = 1e-6


class LRAPerformer(HeadwiseAttention):
    meta = AttentionMeta(
        title="Performer (LRA)",
        paper="arXiv:2011.04006",
        family="kernel",
        cost="n",
        patterns=(Pattern.NONCAUSAL_SELF,),
        fidelity=True,
        remark="relu(x) + 0.001 in place of random features, except on ListOps (features=2); ignores masks.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, features: int | None = None, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if features is not None and features < 1:
            raise UsageError(f"lra_performer needs at least 1 feature, got features={features}; leave it out for ReLU.")
        self.features = features

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
            q, k, values = at_least_single(q), at_least_single(k), at_least_single(v)
            if self.features is None:
                phi_q, phi_k = F.relu(q) + 1e-3, F.relu(k) + 1e-3
            else:
                directions = draw_directions(q, self.features)
                phi_q = stabilized_features(q, directions, STABILISER, over=(-1,))
                phi_k = stabilized_features(k, directions, STABILISER, over=(-1, -2))
            total = phi_q @ phi_k.sum(dim=2)[..., None]
            if self.features is not None:
                total = total + 2 * STABILISER * (total.abs() <= STABILISER)
            return (phi_q @ (phi_k.mT @ values) / total).to(v.dtype)


def draw_directions(q: Float[Tensor, "b h n c"], features: int) -> Float[Tensor, "r c"]:
    """Rows orthogonal in blocks of c, with the lengths of Gaussian vectors, seeded with the sum of the queries."""
    seed = int((q.detach().double().sum() * 1e7).ceil().remainder(2**31))
    generator = torch.Generator().manual_seed(seed)
    return draw_projection(features, q.shape[-1], uniform=False, generator=generator).to(q)
