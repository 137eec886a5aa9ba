"""YOSO in expectation as its authors last released it (version 2): cosines are shrunk, and the gradient is exact.

    y_i = u_i / |u_i| + (conv * v)_i      u_i = sum_j w_ij v_j      w_ij = (1 - arccos(0.98 x_ij) / pi)^bits

with x_ij the cosine of the angle between q_i and k_j. The factor 0.98 keeps the derivative of the arc cosine finite, so
the paper's surrogate gradient (`yoso_e`) is not needed; a pair of equal vectors no longer has weight 1. `conv` > 0 is
the number of taps of a filter along the values, one per head.

Code: mlpen/YOSO, yoso_v2/yoso.py, without its hashes. Departs from it in: nothing.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern, centred_conv
from longspan.core.errors import UsageError
from longspan.kernels.precision import at_least_single, without_autocast

SHRINK = 0.98


class AuthorsYOSO(HeadwiseAttention):
    meta = AttentionMeta(
        title="YOSO-E (authors, version 2)",
        paper="arXiv:2111.09714",
        family="hashing",
        cost="n^2",
        patterns=(Pattern.NONCAUSAL_SELF,),
        fidelity=True,
        remark="Cosines are multiplied by 0.98, in place of the paper's gradient.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, bits: int = 9, conv: int = 0, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if bits < 1:
            raise UsageError(f"A hash has at least one bit, got bits={bits}.")
        self.bits, self.conv = bits, centred_conv(heads, conv)

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
            q, k, values = (at_least_single(x) for x in (q, k, v))
            if key_mask is not None:
                values = values.masked_fill(~key_mask[:, None, :, None], 0)
            cosine = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
            w = (1 - (SHRINK * cosine).acos() / torch.pi) ** self.bits
            y = F.normalize(w @ values, dim=-1)  # a hidden key has a value of 0
            if self.conv is not None:
                y = y + F.conv2d(values, self.conv.weight.to(values.dtype), padding="same", groups=self.heads)
        return y.to(v.dtype)
