"""Memory-compressed attention: a strided convolution merges several tokens into one, and queries attend to these.

    y_i = softmax_s(q_i . k_s / sqrt(c)) v_s      k = M W_k      v = M W_v      M = [x_0, z_1, z_2, ...]
    z_s = b + sum_{r < f} W_r x_{(s - 1) f + r}

with f = `factor`, over all slots s of the memory M; in causal self attention over those whose block ended before i,
s f <= i, or with `inclusive` at i, s f <= i + 1. Slot 0 is the first token, which every query sees, so that none sees
nothing; an incomplete last block has no slot. The filters W_r mix the channels of a head, or with `dense` all channels.
In cross attention M is computed from the context. Padding does not count as tokens: blocks are cut over the real ones.

Paper: arXiv:1801.10198. Departs from the paper in: filters mix the channels of a head (3 % more parameters than softmax
attention in an encoder block of width 512; `dense`, as in the authors' code, has 25 %); local layers, with which the
paper alternates these, are left to the network. What the paper leaves open is as in the authors' tensor2tensor:
compression before the projections, slot 0, and when a block is seen. The common package is `lucidrains_mca`.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import ALL_PATTERNS, Attention, AttentionMeta, Pattern
from longspan.attentions.states import DecodeState, KeyValueCache
from longspan.core.errors import UsageError
from longspan.kernels.masked import attend_once, masked_attention
from longspan.kernels.packing import fill_up, left_align, real
from longspan.kernels.precision import as_operand


@dataclass
class CompressedPast(KeyValueCache):
    """The keys and values of all slots so far, and the tokens of the current block; `lengths` counts tokens."""

    begun: Float[Tensor, "b f d"]


@dataclass
class CompressedContext(DecodeState):
    """The keys and values of the context's slots."""

    k: Float[Tensor, "b h s c"]
    v: Float[Tensor, "b h s c"]
    exists: Bool[Tensor, "b s"]


class MemoryCompressed(Attention):
    meta = AttentionMeta(
        title="MCA",
        paper="arXiv:1801.10198",
        family="downsampling",
        cost="n^2",
        patterns=ALL_PATTERNS,
        dropout="weights",
        remark="The last tokens of a row, too few for a block, are seen by no query.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        factor: int = 3,
        inclusive: bool = False,
        dense: bool = False,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        if factor < 1:
            raise UsageError(f"mca makes one token of at least 1, got factor={factor}.")
        self.factor, self.inclusive = factor, inclusive
        self.query, self.key, self.value = (nn.Linear(dim, self.inner, bias=bias) for _ in range(3))
        self.out = nn.Linear(self.inner, dim, bias=bias)
        groups = 1 if dense else math.gcd(dim, heads)  # dim need not be a multiple of heads
        self.compress = nn.Conv1d(dim, dim, factor, stride=factor, groups=groups, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        source, key_mask = self._source(x, context, mask, context_mask)
        source, lengths = left_align(source, key_mask)  # now every block before a real token is real
        if self.pattern is not Pattern.CAUSAL_SELF:
            k, v = self._slots(self.memory(source))
            q = self._split(self.query(x))
            if key_mask is None:
                y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.active_dropout)
            else:
                exists = self._exists(lengths, k.shape[2])[:, None, None]
                y = masked_attention(q, k, v, exists, dropout=self.active_dropout)
            return self._merge(y)
        y = rearrange(self._causal(source), "b h n c -> b n (h c)")
        if mask is not None:  # outputs back at their tokens, 0 elsewhere
            rows = torch.arange(len(x), device=x.device)[:, None]
            y = y[rows, (mask.cumsum(dim=1) - 1).clamp(min=0)].masked_fill(~mask[..., None], 0)
        return self.out(y)

    def memory(self, x: Float[Tensor, "b m d"]) -> Float[Tensor, "b s d"]:
        """The first token and the compressed blocks of left-aligned tokens."""
        whole, groups = x.shape[1] // self.factor * self.factor, self.compress.groups
        blocks = rearrange(x[:, :whole], "b (s f) (g i) -> b s f g i", f=self.factor, g=groups)
        weight = rearrange(self.compress.weight, "(g o) i f -> g o i f", g=groups)
        # one matrix product per group: convolutions of this shape are slow
        z = rearrange(einsum(blocks, weight, "b s f g i, g o i f -> b s g o"), "b s g o -> b s (g o)")
        z = z if self.compress.bias is None else z + self.compress.bias
        return torch.cat([x[:, :1], z.to(x.dtype)], dim=1)

    def first_seen(self, slots: Int[Tensor, " s"]) -> Int[Tensor, " s"]:
        """The first position at which a causal query sees each slot."""
        return (slots * self.factor - int(self.inclusive)).clamp(min=0)

    def _slots(self, memory: Float[Tensor, "b s d"]) -> tuple[Float[Tensor, "b h s c"], Float[Tensor, "b h s c"]]:
        return self._split(self.key(memory)), self._split(self.value(memory))

    def _exists(self, lengths: Int[Tensor, " b"], slots: int) -> Bool[Tensor, "b s"]:
        """Which slots hold tokens of rows of these lengths."""
        return real((lengths > 0) + lengths // self.factor, slots)

    def _causal(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b h n c"]:
        """The f queries that see the same slots become queries of f heads, so that the mask is just slot <= query."""
        n, first = x.shape[1], int(self.inclusive)
        groups = -(-(n + first) // self.factor)
        q = fill_up(F.pad(self._split(self.query(x)), (0, 0, first, 0)), groups * self.factor)
        q = rearrange(q, "b h (g f) c -> b (h f) g c", f=self.factor)
        k, v = self._slots(self.memory(x)[:, :groups])
        k, v = (repeat(u, "b h s c -> b (h f) s c", f=self.factor) for u in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.active_dropout)
        return rearrange(y, "b (h f) g c -> b h (g f) c", f=self.factor)[:, :, first : first + n]

    def prefill(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], DecodeState]:
        self._needs_decoding()
        y = self(x, context, mask=mask, context_mask=context_mask) if x.shape[1] else x
        source, key_mask = self._source(x, context, mask, context_mask)
        source, lengths = left_align(source, key_mask)
        k, v = self._slots(self.memory(source))
        if self.pattern.cross:
            return y, CompressedContext(k, v, self._exists(lengths, k.shape[2]))
        place = lengths[:, None] // self.factor * self.factor + torch.arange(self.factor, device=x.device)
        begun = F.pad(source, (0, 0, 0, self.factor)).take_along_dim(place[..., None], dim=1)
        return y, CompressedPast(k, v, lengths, begun)

    def step(
        self, x_t: Float[Tensor, "b d"], state: CompressedPast | CompressedContext
    ) -> tuple[Float[Tensor, "b d"], CompressedPast | CompressedContext]:
        self._needs_decoding()
        q = self._split(self.query(x_t[:, None]))[:, :, 0]
        if isinstance(state, CompressedContext):
            y = attend_once(q, state.k, state.v, state.exists[:, None])
        else:
            t = state.lengths
            state = self._plus(x_t, state)
            slots = torch.arange(state.k.shape[2], device=t.device)
            y = attend_once(q, state.k, state.v, (self.first_seen(slots) <= t[:, None])[:, None])
        return self.out(as_operand(rearrange(y, "b h c -> b (h c)"), self.out.weight)), state

    def _plus(self, x_t: Float[Tensor, "b d"], state: CompressedPast) -> CompressedPast:
        """One more token in each row: appends the slot that begins with it or that it completes."""
        t, f = state.lengths, self.factor
        here = torch.arange(f, device=t.device) == (t % f)[:, None]
        begun = torch.where(here[..., None], x_t[:, None].to(state.begun.dtype), state.begun)
        k, v = self._slots(torch.cat([x_t[:, None], self.memory(begun)[:, 1:]], dim=1))
        # slot 0 at the first token, else the slot of its block, which becomes visible once its last token is there
        places = torch.stack([torch.zeros_like(t), t // f + 1], dim=1)
        new = torch.stack([t == 0, (t + 1) % f == 0], dim=1)
        width = max(state.k.shape[2], int((places + 1)[new].max()) if new.any() else 0)
        state_k, state_v = fill_up(state.k, width), fill_up(state.v, width)
        for slot in range(2):
            at = (torch.arange(width, device=t.device) == places[:, slot, None]) & new[:, slot, None]
            state_k, state_v = (
                torch.where(at[:, None, :, None], u[:, :, slot, None].to(old.dtype), old)
                for u, old in ((k, state_k), (v, state_v))
            )
        return replace(state, k=state_k, v=state_v, lengths=t + 1, begun=begun)
