"""Nystromformer: the softmax matrix approximated from its rows and columns at a few landmarks, by the Nystrom method.

    y = F A+ (B v)      F = softmax(q K'^T / sqrt(c))   A = softmax(Q' K'^T / sqrt(c))   B = softmax(Q' k^T / sqrt(c))

Q', K' are the means of `landmarks` segments of the queries and of the keys. A+ comes from `iterations` steps of

    Z <- Z (13 - A Z (15 - A Z (7 - A Z))) / 4      Z_0 = A^T / (|A|_1 |A|_inf)

A row with no more keys, or no more queries, than landmarks gets plain softmax attention. `conv` > 0 adds a depth-wise
convolution of v along the tokens, with that many taps, one filter per head. Everything is computed in single precision
or better, because A+ magnifies rounding errors. Paper: arXiv:2102.03902.

Departs from the paper in: segments are cut over the real tokens of each row, whose number need not be a multiple of
`landmarks`; Z_0 is scaled for each matrix. In the authors' code (`cab_nystromformer(code="authors")`) a row depends on
its neighbours in the batch and on the amount of padding.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import NONCAUSAL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern, centred_conv
from longspan.core.errors import UsageError
from longspan.kernels.landmark import landmark_attend, landmark_pool
from longspan.kernels.pooling import segment_means
from longspan.kernels.precision import at_least_single, without_autocast
from longspan.kernels.pseudo_inverse import pseudo_inverse


class Nystromformer(HeadwiseAttention):
    meta = AttentionMeta(
        title="Nyströmformer",
        paper="arXiv:2102.03902",
        family="low rank",
        cost="n",
        patterns=NONCAUSAL_PATTERNS,
        limit="landmarks=4096, conv=0",
        remark="CAB's table denies cross attention; queries and keys need equally many segments, not equal lengths.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        landmarks: int = 64,
        iterations: int = 6,
        conv: int = 0,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if landmarks < 1 or iterations < 1:
            raise UsageError(f"landmarks and iterations must be at least 1, got {landmarks} and {iterations}.")
        if conv and self.pattern.cross:
            raise UsageError(f"conv={conv} runs along the queries' own values; leave it out as {self.pattern}.")
        self.landmarks, self.iterations = landmarks, iterations
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
        with without_autocast(q):
            if min(q.shape[2], k.shape[2]) <= self.landmarks:
                keys, values = _erase(at_least_single(k), key_mask), _erase(at_least_single(v), key_mask)
                y = landmark_attend(q, keys / q.shape[-1] ** 0.5, values, key_mask=key_mask, query_mask=query_mask)
            else:
                y = self._nystrom(q, k, v, key_mask, query_mask)
            if self.conv is not None:
                values, weight = _erase(at_least_single(v), key_mask), self.conv.weight
                y = y + F.conv2d(values, weight.to(values.dtype), padding="same", groups=self.heads)
        return y.to(q.dtype)

    def _nystrom(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        key_mask: Bool[Tensor, "b m"] | None,
        query_mask: Bool[Tensor, "b n"] | None,
    ) -> Float[Tensor, "b h n e"]:
        """F A+ B v where a row has more tokens than landmarks on both sides, otherwise softmax attention."""
        landmark_q, _ = segment_means(q, self.landmarks, query_mask)
        landmark_k, occupied = segment_means(k, self.landmarks, key_mask)
        scaled_q, scaled_k = (landmark / q.shape[-1] ** 0.5 for landmark in (landmark_q, landmark_k))
        bv, _ = landmark_pool(scaled_q, k, v, key_mask=key_mask)

        few_q, few_k = self._few(query_mask), self._few(key_mask)
        a = torch.softmax(landmark_q @ scaled_k.mT, dim=-1)
        few = few_q if few_k is None else few_k if few_q is None else few_q | few_k
        if few is not None:
            a = torch.where(few, torch.eye(self.landmarks, dtype=a.dtype, device=a.device), a)
        y = pseudo_inverse(a, self.iterations) @ bv
        if few_k is not None:  # every landmark is a key, so F is the softmax matrix itself
            y = torch.where(few_k, segment_means(v, self.landmarks, key_mask)[0], y)
        occupied = None if key_mask is None else occupied
        y = landmark_attend(q, scaled_k, y, key_mask=occupied, query_mask=query_mask)
        if few_q is not None and query_mask is not None:  # every landmark is a query, so B v is the output itself
            place = (query_mask.cumsum(dim=1) - 1).clamp(0, self.landmarks - 1)
            own = bv.gather(2, place[:, None, :, None].expand(-1, bv.shape[1], -1, bv.shape[3]))
            y = torch.where(few_q if few_k is None else few_q & ~few_k, own.to(y.dtype), y)
        return y

    def _few(self, mask: Bool[Tensor, "b n"] | None) -> Bool[Tensor, "b 1 1 1"] | None:
        """The rows with no more tokens than landmarks; None without a mask."""
        return None if mask is None else rearrange(mask.sum(dim=1) <= self.landmarks, "b -> b 1 1 1")


def _erase(x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b h n c"]:
    return x if mask is None else x.masked_fill(~mask[:, None, :, None], 0)
