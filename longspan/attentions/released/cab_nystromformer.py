"""Nystromformer as released, by CAB and by its authors: rows of a batch affect one another, and padding counts.

    y = F A+ (B v)      F = softmax(q K'^T / s)   A = softmax(Q' K'^T / s)   B = softmax(Q' k^T / s)

with A+, the landmarks Q', K' and the convolution `conv` of v as in `nystromformer`. In both releases the means run over
the padded width, zeros of padding included, and Z_0 is scaled by the largest column sum of the whole batch. Rows no
wider than `landmarks` get softmax attention.

    code = "cab"      s = c: q and k are both divided by sqrt(c). Padded queries count as they are. Where the width is
                      no multiple of `landmarks` the shorter segments come first. The mask is repeated heads first and
                      the data lie batch first: head h of row b is masked as row (b heads + h) mod batch
    code = "authors"  s = sqrt(c), and masks are where they belong

Code: Shark-NLP/CAB, efficient_attention/modules/nystrom_attention.py; mlpen/Nystromformer,
LRA/code/attention_nystrom.py. Departs from it in: a head whose keys are all padded outputs 0, not NaN; everything is
computed in single precision or better.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern, centred_conv
from longspan.core.errors import UsageError
from longspan.kernels.masked import masked_attention, tile_heads_first
from longspan.kernels.pooling import segment_means
from longspan.kernels.precision import at_least_single, without_autocast
from longspan.kernels.pseudo_inverse import pseudo_inverse


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

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        landmarks: int = 16,
        iterations: int = 6,
        conv: int = 0,
        code: Literal["cab", "authors"] = "cab",
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if landmarks < 1 or iterations < 1:
            raise UsageError(f"cab_nystromformer needs at least 1 landmark and step, got {landmarks} and {iterations}.")
        self.landmarks, self.iterations, self.code = landmarks, iterations, code
        self.conv = centred_conv(heads, conv)

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        dtype, cab = q.dtype, self.code == "cab"
        with without_autocast(q):
            q, k, v = at_least_single(q), at_least_single(k), at_least_single(v)
            visible = None
            if cab:
                q = q / q.shape[-1] ** 0.5
            elif query_mask is not None:
                q = q.masked_fill(~rearrange(query_mask, "b n -> b 1 n 1"), 0)
            if key_mask is not None:
                rows = rearrange(key_mask, "b m -> b 1 m").expand(-1, self.heads, -1)
                visible = tile_heads_first(key_mask, self.heads) if cab else rows
                k, v = (u.masked_fill(~rearrange(visible, "b h m -> b h m 1"), 0) for u in (k, v))
            if q.shape[2] <= self.landmarks:
                y = _softmax(q, k, v, visible)
            else:
                landmark_q, landmark_k = (segment_means(u, self.landmarks, longer="last")[0] for u in (q, k))
                a = torch.softmax(landmark_q @ landmark_k.mT / q.shape[-1] ** 0.5, dim=-1)
                inverse = pseudo_inverse(a, self.iterations, norm=a.sum(dim=-2).max().reshape(1, 1, 1, 1))
                y = _softmax(q, landmark_k, inverse @ _softmax(landmark_q, k, v, visible), None)
            if self.conv is not None:
                y = y + F.conv2d(v, self.conv.weight.to(v.dtype), padding="same", groups=self.heads)
        return y.to(dtype)


def _softmax(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    visible: Bool[Tensor, "b h m"] | None,
) -> Float[Tensor, "b h n e"]:
    if visible is None:
        return F.scaled_dot_product_attention(q, k, v)
    return masked_attention(q, k, v, rearrange(visible, "b h m -> b h 1 m"))
