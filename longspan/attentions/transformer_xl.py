"""Transformer-XL: softmax attention by relative positions, over a segment and the memory of those before it.

    y_i = sum_j softmax_j(s_ij) v_j      s_ij = ((q_i + u) . k_j + (q_i + w) . r_{i-j}) / sqrt(c)      r_d = W_r rho(d)

with rho(d) the sines and then the cosines of a distance, u and w learned for each head. Keys and values come from the
segment and the `memory` tokens before it, as they came into this layer, without gradients: `carried` passes them on.
`forward` is a segment without a memory. A language model reads a row in segments of `segment` tokens (0: whole rows).
With `same_length` every query sees as many keys, the last `memory` up to its own. Causal self attention is the paper's;
noncausal_self takes signed distances, as XLNet does, and a memory stands at its left. Across two sequences there is no
distance, so there are no cross patterns. Against softmax it has W_r [dim, inner], u and w more: 8.4 % of an encoder
block. Paper: arXiv:1901.02860. Departs from the paper in: u and w belong to each layer (the option `untie_r` of the
released code), and a network's own positions are not taken away.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, AttentionMeta, HeadwiseAttention, KeyValueCache, Memory, Pattern
from longspan.core.errors import UsageError


class TransformerXL(HeadwiseAttention):
    meta = AttentionMeta(
        title="Transformer-XL",
        paper="arXiv:1901.02860",
        family="recurrence",
        cost="n^2",
        patterns=SELF_PATTERNS,
        positions=True,
        places="distances",
        dropout="weights",
        carries="segments",
        remark="Linear in a text that is read in segments; CAB's table counts one segment.",
    )
    carry_type = Memory

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        memory: int = 512,
        segment: int = 512,
        same_length: bool = False,
        **shell,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if memory < 0 or segment < 0 or (same_length and not memory):
            raise UsageError(
                f"Transformer-XL remembers 0 or more tokens and reads 0 or more at a time, got memory={memory} and "
                f"segment={segment}; with same_length a query sees `memory` keys, at least 1."
            )
        self.memory, self.segment, self.same_length = memory, segment or None, same_length
        self.distance = nn.Linear(dim, self.inner, bias=False)  # W_r
        self.u, self.w = (nn.Parameter(torch.empty(heads, self.head_dim)) for _ in range(2))
        for parameter in (self.distance.weight, self.u, self.w):
            nn.init.normal_(parameter, std=0.02)

    def carried(
        self,
        x: Float[Tensor, "b n d"],
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        carry: Memory | None = None,
    ) -> tuple[Float[Tensor, "b n d"], Memory]:
        source, key_mask = x, mask
        if carry is not None:
            real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
            source, key_mask = torch.cat([carry.x, x], dim=1), torch.cat([carry.mask, real], dim=1)
        q, k, v = self._split(self.query(x)), self._split(self.key(source)), self._split(self.value(source))
        y = self._merge(self.attend(q, k, v, key_mask=key_mask))
        return y, Memory.after(carry, x, mask, self.memory)

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        """Keys may begin before the queries, by as many as there are more of them."""
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
        """The formula, for r of all distances from the largest on."""
        bias = shifted((q + self.w[:, None].to(q.dtype)) @ r.to(q.dtype).mT, k.shape[2])
        visible = self.visible(q.shape[2], k.shape[2], q.device)[None, None]
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
        visible = self.visible(n, m, q.device)[None, None]
        visible = visible if key_mask is None else visible & key_mask[:, None, None, :]
        far = shifted((q + self.w[:, None]) @ self.places(n, m).mT, m)
        scores = ((q + self.u[:, None]) @ k.mT + far) / q.shape[-1] ** 0.5
        return torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1).masked_fill(~visible, 0)

    def visible(self, n: int, m: int, device: torch.device) -> Bool[Tensor, "n m"]:
        distance = torch.arange(m - n, m, device=device)[:, None] - torch.arange(m, device=device)
        seen = distance >= 0 if self.pattern.causal else torch.ones_like(distance, dtype=torch.bool)
        return seen & (distance.abs() < self.memory) if self.same_length else seen

    def places(self, n: int, m: int) -> Float[Tensor, "h distances c"]:
        """r for the distances m - 1, m - 2, ... down to 0, or to 1 - n where later keys are seen too."""
        last = 0 if self.pattern.causal else 1 - n
        return self._place(torch.arange(m - 1, last - 1, -1, device=self.u.device))

    def _place(self, distance: Int[Tensor, " distances"]) -> Float[Tensor, "h distances c"]:
        dtype = torch.promote_types(self.u.dtype, torch.float32)
        frequency = 10_000 ** (-torch.arange(0, self.dim, 2, device=distance.device, dtype=dtype) / self.dim)
        angle = distance[:, None].to(dtype) * frequency
        waves = torch.cat([angle.sin(), angle.cos()], dim=-1)[:, : self.dim]
        return self.distance(waves.to(self.u.dtype)).unflatten(-1, (self.heads, -1)).transpose(0, 1)

    def _softmax(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        bias: Float[Tensor, "b h n m"],
        visible: Bool[Tensor, "#b 1 n m"],
    ) -> Float[Tensor, "b h n e"]:
        blind = ~visible.any(dim=-1, keepdim=True)  # which sees everything, so that all is finite, and is set to 0
        bias = (bias / q.shape[-1] ** 0.5).masked_fill(~(visible | blind), -torch.inf).to(q.dtype)
        q = q + self.u[:, None].to(q.dtype)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=self.active_dropout)
        return y.masked_fill(blind, 0)

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
        far = torch.einsum("bhc,htc->bht", q + self.w.to(q.dtype), r)
        bias = far.gather(2, distance.clamp(min=0)[:, None].expand(-1, self.heads, -1))
        seen = (distance >= 0) & (distance < self.memory) if self.same_length else distance >= 0
        return self._softmax(q[:, :, None], state.k, state.v, bias[:, :, None], seen[:, None, None])[:, :, 0], state


def shifted(scores: Float[Tensor, "b h n distances"], m: int) -> Float[Tensor, "b h n m"]:
    """Column n - 1 - i + j of row i as column j: from distances, the largest first, to keys.

    Where the distances end at 0, what stands for later keys belongs to other rows, and is for the mask to hide.
    """
    n, distances = scores.shape[-2:]
    flat = F.pad(scores, (0, 1)).flatten(-2)[..., n - 1 : n - 1 + n * distances]  # which moves row i by -i
    return flat.unflatten(-1, (n, distances))[..., :m]
