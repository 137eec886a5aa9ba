"""Nystromformer as CAB released it: logits divided twice by sqrt(c), and masks that belong to other rows.

    y = F A+ (B v)      F = softmax(q K'^T / c)   A = softmax(Q' K'^T / c)   B = softmax(Q' k^T / c)

with A+, the landmarks Q', K' and the convolution `conv` of v as in `nystromformer`. The idea divides by sqrt(c); here q
and k are both divided by it. Further: the means run over the padded width, the zeros of padded keys included and padded
queries as they are; where the width is no multiple of `landmarks`, the shorter segments come first; the start of A+ is
scaled by the largest column sum of the whole batch, so that its rows change one another; and the mask is repeated heads
first where the data lie batch first, so that head h of row b is masked as row (b heads + h) mod batch. With one row, or
one head, every mask is where it belongs. A width of at most `landmarks` gets softmax attention, at that temperature and
with that mask.

Code: Shark-NLP/CAB, efficient_attention/modules/nystrom_attention.py. Departs from it in: a head all of whose keys are
padded gives 0, not NaN; all of it is computed in single precision at least.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.masked import masked_attention, tile_heads_first
from longspan.kernels.precision import at_least_single, without_autocast
from longspan.kernels.pseudo_inverse import pseudo_inverse
from longspan.kernels.segment_means import segment_means

ITERATIONS = 6


class CABNystromformer(HeadwiseAttention):
    meta = AttentionMeta(
        title="Nyströmformer (CAB)",
        paper="arXiv:2210.07661",
        family="low rank",
        cost="n",
        patterns=(Pattern.NONCAUSAL_SELF,),
        fidelity=True,
        remark="Logits are divided by the head width, not its root, and rows are masked with the lengths of others.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, landmarks: int = 16, conv: int = 0, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if landmarks < 1:
            raise UsageError(f"cab_nystromformer needs at least 1 landmark, got landmarks={landmarks}.")
        if conv and (conv < 0 or conv % 2 == 0):
            raise UsageError(
                f"conv counts the taps of a centred filter, got {conv}; choose an odd number, or 0 for none."
            )
        self.landmarks = landmarks
        self.conv = (
            nn.Conv2d(heads, heads, (conv, 1), padding=(conv // 2, 0), groups=heads, bias=False) if conv else None
        )

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        given = q.dtype
        with without_autocast(q):
            q, k, v = at_least_single(q) / q.shape[-1] ** 0.5, at_least_single(k), at_least_single(v)
            visible = None if key_mask is None else tile_heads_first(key_mask, self.heads)
            if visible is not None:
                k, v = (u.masked_fill(~rearrange(visible, "b h m -> b h m 1"), 0) for u in (k, v))
            if q.shape[2] <= self.landmarks:
                y = _softmax(q, k, v, visible)
            else:
                landmark_q, landmark_k = (segment_means(u, self.landmarks, longer="last")[0] for u in (q, k))
                a = torch.softmax(landmark_q @ landmark_k.mT / q.shape[-1] ** 0.5, dim=-1)
                bv = _softmax(landmark_q, k, v, visible)
                y = _softmax(q, landmark_k, pseudo_inverse(a, ITERATIONS, "batch") @ bv, None)
            if self.conv is not None:
                weight = self.conv.weight.to(v.dtype)
                y = y + F.conv2d(v, weight, padding=self.conv.padding, groups=self.heads)  # pyright: ignore[reportArgumentType]
        return y.to(given)


def _softmax(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    visible: Bool[Tensor, "b h m"] | None,
) -> Float[Tensor, "b h n e"]:
    if visible is None:
        return F.scaled_dot_product_attention(q, k, v)
    return masked_attention(q, k, v, rearrange(visible, "b h m -> b h 1 m"))
