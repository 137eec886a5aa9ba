"""Nystromformer: the softmax matrix rebuilt from its rows and columns at a few landmarks, by the Nystrom method.

    y = F A+ (B v)      F = softmax(q K'^T / sqrt(c))   A = softmax(Q' K'^T / sqrt(c))   B = softmax(Q' k^T / sqrt(c))

Q', K' are the means of `landmarks` segments of the queries and of the keys. A+ comes from `iterations` steps of

    Z <- Z (13 - A Z (15 - A Z (7 - A Z))) / 4      Z_0 = A^T / (|A|_1 |A|_inf)

A row with no more keys, or no more queries, than landmarks gets plain softmax attention. `conv` > 0 adds a depth-wise
convolution of v along the tokens, with that many taps, one filter per head. All of it is computed in single precision
at least, because A+ magnifies rounding. Paper: arXiv:2102.03902.

Departs from the paper in: segments are cut over the real tokens of each row, whose number need not be a multiple of
`landmarks`; the starting scale belongs to each matrix. The authors' code takes one scale for a whole batch
(`start="batch"`) and cuts the padded width, zeros included (`segments="width"`): with these two settings a row depends
on its neighbours in the batch and on the amount of padding.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import NONCAUSAL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.few_keys import few_keys
from longspan.kernels.few_queries import few_queries
from longspan.kernels.precision import at_least_single, without_autocast
from longspan.kernels.pseudo_inverse import Start, pseudo_inverse
from longspan.kernels.segment_means import segment_means


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
        start: Start = "matrix",
        segments: Literal["real", "width"] = "real",
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if landmarks < 1 or iterations < 1:
            raise UsageError(f"landmarks and iterations must be at least 1, got {landmarks} and {iterations}.")
        if conv and (conv < 0 or conv % 2 == 0):
            raise UsageError(
                f"conv counts the taps of a centred filter, got {conv}; choose an odd number, or 0 for none."
            )
        if conv and self.pattern.cross:
            raise UsageError(f"conv={conv} runs along the queries' own values; leave it out as {self.pattern}.")
        self.landmarks, self.iterations, self.segments = landmarks, iterations, segments
        self.start: Start = start
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
        with without_autocast(q):
            if min(q.shape[2], k.shape[2]) <= self.landmarks:
                keys, values = (_erased(at_least_single(u), key_mask) for u in (k, v))
                shift = None if key_mask is None else _only(key_mask, k.shape[1])
                y = few_keys(q, keys / q.shape[-1] ** 0.5, values, shift=shift, query_mask=query_mask)
            else:
                y = self._nystrom(q, k, v, key_mask, query_mask)
            if self.conv is not None:
                values = _erased(at_least_single(v), key_mask)
                weight = self.conv.weight.to(values.dtype)
                y = y + F.conv2d(values, weight, padding=self.conv.padding, groups=self.heads)  # pyright: ignore[reportArgumentType]
        return y.to(q.dtype)

    def _nystrom(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        key_mask: Bool[Tensor, "b m"] | None,
        query_mask: Bool[Tensor, "b n"] | None,
    ) -> Float[Tensor, "b h n e"]:
        """F A+ B v where a row has more tokens than landmarks on both sides, and softmax attention where it has not."""
        cut_q, cut_k = (query_mask, key_mask) if self.segments == "real" else (None, None)
        landmark_q, _ = segment_means(_erased(q, query_mask), self.landmarks, cut_q)
        landmark_k, occupied = segment_means(_erased(k, key_mask), self.landmarks, cut_k)
        scaled_q, scaled_k = (landmark / q.shape[-1] ** 0.5 for landmark in (landmark_q, landmark_k))
        bv, _ = few_queries(scaled_q, k, v, key_mask=key_mask)

        few_k, few_q = (self._few(cut, len(q), q.device) for cut in (cut_k, cut_q))
        a = torch.softmax(landmark_q @ scaled_k.mT, dim=-1)
        if cut_k is not None or cut_q is not None:
            a = torch.where(few_k | few_q, torch.eye(self.landmarks, dtype=a.dtype, device=a.device), a)
        y = pseudo_inverse(a, self.iterations, self.start) @ bv
        if cut_k is not None:  # few keys: every landmark is a key, F is the softmax matrix itself
            y = torch.where(few_k, segment_means(_erased(v, cut_k), self.landmarks, cut_k)[0], y)
        shift = None if cut_k is None else _only(occupied, q.shape[1])
        y = few_keys(q, scaled_k, y, shift=shift, query_mask=query_mask)
        if cut_q is not None:  # few queries: every landmark is a query, B v is the answer itself
            place = (cut_q.cumsum(dim=1) - 1).clamp(0, self.landmarks - 1)
            own = bv.gather(2, place[:, None, :, None].expand(-1, bv.shape[1], -1, bv.shape[3]))
            y = torch.where(few_q & ~few_k, own.to(y.dtype), y)
        return y

    def _few(self, mask: Bool[Tensor, "b n"] | None, batch: int, device: torch.device) -> Bool[Tensor, "b 1 1 1"]:
        """The rows with no more tokens than landmarks; without a mask there is none here."""
        if mask is None:
            return torch.zeros(batch, 1, 1, 1, dtype=torch.bool, device=device)
        return rearrange(mask.sum(dim=1) <= self.landmarks, "b -> b 1 1 1")


def _erased(x: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b h n c"]:
    return x if mask is None else x.masked_fill(~mask[:, None, :, None], 0)


def _only(mask: Bool[Tensor, "b m"], heads: int) -> Float[Tensor, "b {heads} m"]:
    """What the logits of keys begin with: 0, and -inf for those that are not there."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -torch.inf)[:, None].expand(-1, heads, -1)
