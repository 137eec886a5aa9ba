"""Attention by relative positions as in Transformer-XL, shared by the mechanisms derived from it.

    s_ij = ((q_i + u) . k_j + (q_i + w) . r_{i-j}) / sqrt(c)      r_d = W_r rho(d)

with rho(d) the sines and then the cosines of a distance, u and w learned for each head. Keys may begin before the
queries: the extra keys are earlier ones. The scores by distance form a matrix, which is computed for `QUERIES` queries
at a time: a causal block has no keys after its last query, and every block only the distances that occur in it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import HeadwiseAttention, Pattern
from longspan.attentions.states import KeyValueCache
from longspan.kernels.masked import biased_attention
from longspan.kernels.query_blocks import query_blocks

QUERIES = 1024  # per block; compiled code uses one block, so that it need not recompile for every length


class RelativeAttention(HeadwiseAttention):
    """Softmax attention with these scores; a query sees distances below `reach`, if given."""

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, reach: int | None = None, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        self.reach = reach
        self.distance = nn.Linear(dim, self.inner, bias=False)  # W_r
        self.u, self.w = (nn.Parameter(torch.empty(heads, self.head_dim)) for _ in range(2))
        for parameter in (self.distance.weight, self.u, self.w):
            nn.init.normal_(parameter, std=0.02)

    def attend_after(
        self,
        x: Float[Tensor, "b n d"],
        mask: Bool[Tensor, "b n"] | None,
        past: Float[Tensor, "b m d"],
        past_mask: Bool[Tensor, "b m"],
    ) -> Float[Tensor, "b n d"]:
        """The layer on a segment that follows some past, all of it visible."""
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
        source, key_mask = torch.cat([past, x], dim=1), torch.cat([past_mask, real], dim=1)
        q, k, v = self._split(self.query(x)), self._split(self.key(source)), self._split(self.value(source))
        return self._merge(self.attend(q, k, v, key_mask=key_mask))

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        return self.mix(q, k, v, self.places(q.shape[2], k.shape[2]), key_mask=key_mask)

    def mix(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        r: Float[Tensor, "h distances c"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        """The formula, with r for all distances in descending order."""
        n, before = q.shape[2], k.shape[2] - q.shape[2]
        if n <= QUERIES or torch.compiler.is_compiling():
            return self._mix(q, k, v, r, before, key_mask)
        blocks = []
        for some, seen in query_blocks(n, n, QUERIES, causal=self.pattern.causal):
            keys = slice(before + seen)
            distances = slice(n - some.stop, None if self.pattern.causal else n - some.start + before + n - 1)
            mask = None if key_mask is None else key_mask[:, keys]
            parts = q[:, :, some], k[:, :, keys], v[:, :, keys], r[:, distances]
            blocks.append(self._mix(*parts, before + some.start, mask))
        return torch.cat(blocks, dim=2)

    def _mix(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        r: Float[Tensor, "h distances c"],
        before: int,
        key_mask: Bool[Tensor, "b m"] | None,
    ) -> Float[Tensor, "b h n e"]:
        """The formula for a block of queries, with `before` keys before the first one."""
        m = k.shape[2]
        # scaled and padded before the product, whose result is larger than either factor
        place = (q + self.w[:, None].to(q.dtype)) / q.shape[-1] ** 0.5
        bias = shifted(place @ F.pad(r, (0, 0, 0, max(0, m + 1 - r.shape[1]))).to(q.dtype).mT, m)
        visible = self.visible(q.shape[2], m, before, q.device)[None, None]
        if key_mask is not None:
            visible = visible & key_mask[:, None, None, :]
        return self._softmax(q, k, v, bias, visible)

    def weights(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n m"]:
        n, m = q.shape[2], k.shape[2]
        visible = self.visible(n, m, m - n, q.device)[None, None]
        visible = visible if key_mask is None else visible & key_mask[:, None, None, :]
        far = shifted((q + self.w[:, None]) @ self.places(n, m).mT, m)
        scores = ((q + self.u[:, None]) @ k.mT + far) / q.shape[-1] ** 0.5
        return torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1).masked_fill(~visible, 0)

    def visible(self, n: int, m: int, before: int, device: torch.device) -> Bool[Tensor, "n m"]:
        distance = torch.arange(before, before + n, device=device)[:, None] - torch.arange(m, device=device)
        seen = distance >= 0 if self.pattern.causal else torch.ones_like(distance, dtype=torch.bool)
        return seen if self.reach is None else seen & (distance.abs() < self.reach)

    def places(self, n: int, m: int) -> Float[Tensor, "h distances c"]:
        """r for the distances m - 1, m - 2, ... down to 0, or to 1 - n if later keys are seen too."""
        last = 0 if self.pattern.causal else 1 - n
        return self._place(torch.arange(m - 1, last - 1, -1, device=self.u.device))

    def _place(self, distance: Int[Tensor, " distances"]) -> Float[Tensor, "h distances c"]:
        rho = waves(distance, self.dim, self.u.dtype)
        return self.distance(rho).unflatten(-1, (self.heads, -1)).transpose(0, 1)

    def _softmax(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        bias: Float[Tensor, "b h n m"],
        visible: Bool[Tensor, "#b 1 n m"],
    ) -> Float[Tensor, "b h n e"]:
        q = q + self.u[:, None].to(q.dtype)
        return biased_attention(q, k, v, bias, visible, dropout=self.active_dropout)

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> KeyValueCache:
        return KeyValueCache.of(k, v, key_mask)

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e"] | None,
        state: KeyValueCache,
    ) -> tuple[Float[Tensor, "b h e"], KeyValueCache]:
        assert k is not None
        assert v is not None
        t, state = state.lengths, state.plus(k, v)
        distance = t[:, None] - torch.arange(state.k.shape[2], device=t.device)
        r = self._place(torch.arange(state.k.shape[2], device=t.device)).to(q.dtype)
        far = torch.einsum("bhc,htc->bht", (q + self.w.to(q.dtype)) / q.shape[-1] ** 0.5, r)
        bias = far.gather(2, distance.clamp(min=0)[:, None].expand(-1, self.heads, -1))
        seen = distance >= 0 if self.reach is None else (distance >= 0) & (distance < self.reach)
        return self._softmax(q[:, :, None], state.k, state.v, bias[:, :, None], seen[:, None, None])[:, :, 0], state


def segments(
    x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, length: int
) -> tuple[Float[Tensor, "rows length d"], Bool[Tensor, "rows length"]]:
    """Every segment of every row as a row of its own, the last one padded, and which tokens are real."""
    mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
    missing = -x.shape[1] % length
    x, mask = F.pad(x, (0, 0, 0, missing)), F.pad(mask, (0, missing))
    return rearrange(x, "b (s l) d -> (b s) l d", l=length), rearrange(mask, "b (s l) -> (b s) l", l=length)


def rows(segments: Float[Tensor, "rows length d"], b: int, n: int) -> Float[Tensor, "b n d"]:
    """The rows that consist of these segments."""
    return rearrange(segments, "(b s) l d -> b (s l) d", b=b)[:, :n]


def counts(mask: Bool[Tensor, "b n"], first: int, length: int) -> Int[Tensor, "b s_plus_1"]:
    """How many real tokens precede each segment, starting from the one at `first`, and how many there are in total."""
    so_far = F.pad(mask.cumsum(dim=1), (1, 0))
    return torch.cat([so_far[:, first:-1:length], so_far[:, -1:]], dim=1)


def waves(distance: Int[Tensor, " distances"], width: int, dtype: torch.dtype) -> Float[Tensor, "distances width"]:
    """rho: the sines and then the cosines of each distance, computed in float32 or better."""
    wide = torch.promote_types(dtype, torch.float32)
    frequency = 10_000 ** (-torch.arange(0, width, 2, device=distance.device, dtype=wide) / width)
    angle = distance[:, None].to(wide) * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1)[:, :width].to(dtype)


def shifted(scores: Float[Tensor, "b h n distances"], m: int, *, step: int = 1) -> Float[Tensor, "b h n m"]:
    """Column (n - 1 - i) step + j of row i becomes column j: from distances, largest first, to keys.

    If the distances end at 0, the entries for later keys come from other rows and must be masked.
    """
    n, distances = scores.shape[-2:]
    if distances < m + step:
        scores = F.pad(scores, (0, m + step - distances))  # so that each row keeps m columns
    width = scores.shape[-1] - step  # reading rows of this width shifts row i by -i step
    start = (n - 1) * step
    return scores.flatten(-2)[..., start : start + n * width].unflatten(-1, (n, width))[..., :m]
