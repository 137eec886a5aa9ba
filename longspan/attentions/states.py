"""What is remembered between calls: by a causal mechanism from step to step, by `carried` from layer to layer.

    y, state = layer.prefill(x)                 # a DecodeState
    y_t, state = layer.step(x_t, state)
    state = state.select(rows)                  # some rows, in another order

`KeyValueCache` keeps all keys and values, `KeyValueRing` the last few; `History`, the fallback, keeps all tokens.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.kernels.cache import append, fill_ring, put_in_ring, ring_positions
from longspan.kernels.packing import left_align, real_first


@dataclass
class DecodeState:
    """What a causal mechanism remembers between steps; every tensor has the batch as its first axis."""

    def select(self, rows: Int[Tensor, " r"]) -> "DecodeState":
        """Keep these rows, in this order (beam search, finished sequences)."""
        chosen = {name: value.index_select(0, rows.to(value.device)) for name, value in self._tensors().items()}
        return dataclasses.replace(self, **chosen)

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in self._tensors().values())

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if torch.is_tensor(value)}


@dataclass
class Carry(DecodeState):
    """What `carried` passes on; `forget` clears the boolean fields, which say what is real."""

    def detached(self) -> "Carry":
        """The same, detached, as it passes from segment to segment."""
        return dataclasses.replace(self, **{name: value.detach() for name, value in self._tensors().items()})

    def forget(self, rows: Bool[Tensor, " b"]) -> "Carry":
        """Drop the past of these rows."""
        real = {name: value for name, value in self._tensors().items() if value.dtype == torch.bool}
        return dataclasses.replace(
            self, **{name: value & ~rows.to(value.device)[:, None] for name, value in real.items()}
        )


@dataclass
class Memory(Carry):
    """The last tokens of each row before this segment, right-aligned."""

    x: Float[Tensor, "b m d"]
    mask: Bool[Tensor, "b m"]

    @classmethod
    def after(
        cls, memory: "Memory | None", x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, size: int
    ) -> "Memory":
        """The last `size` real tokens up to the end of a segment x that follows `memory`."""
        whole = cls.whole(memory, x, mask)
        last = real_first(~whole.mask)[:, max(0, whole.x.shape[1] - size) :]  # padding comes first
        return cls(whole.x.gather(1, last[..., None].expand(-1, -1, x.shape[2])), whole.mask.gather(1, last))

    @classmethod
    def whole(cls, memory: "Memory | None", x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None) -> "Memory":
        """All tokens of `memory` and of a segment x that follows it, concatenated."""
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
        if memory is None:
            return cls(x, mask)
        return cls(torch.cat([memory.x, x], dim=1), torch.cat([memory.mask, mask], dim=1))


@dataclass
class History(DecodeState):
    """The fallback state: all tokens so far, left-aligned, and the whole context."""

    x: Float[Tensor, "b t d"]
    lengths: Int[Tensor, " b"]
    context: Float[Tensor, "b m d"] | None = None
    context_mask: Bool[Tensor, "b m"] | None = None


@dataclass
class KeyValueCache(DecodeState):
    """All keys and values so far, left-aligned."""

    k: Float[Tensor, "b h t c"]
    v: Float[Tensor, "b h t e"]
    lengths: Int[Tensor, " b"]

    @classmethod
    def of(
        cls, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], mask: Bool[Tensor, "b m"] | None, **more: Tensor
    ) -> Any:  # `cls`: runtime type checks do not support Self
        """The cache after these tokens; `more` are the other fields of a subclass, passed through unchanged."""
        (keys, lengths), (values, _) = (left_align(u.transpose(1, 2), mask) for u in (k, v))
        return cls(keys.transpose(1, 2), values.transpose(1, 2), lengths, **more)

    def plus(self, k: Float[Tensor, "b h c"], v: Float[Tensor, "b h e"], **more: Tensor) -> Any:
        """The cache after one more token in each row; `more` are the new values of other fields."""
        k, v = append(self.k, k, self.lengths), append(self.v, v, self.lengths)
        return dataclasses.replace(self, k=k, v=v, lengths=self.lengths + 1, **more)


@dataclass
class KeyValueRing(DecodeState):
    """The last keys and values; the token at position p of a row lies in slot p modulo the number of slots."""

    k: Float[Tensor, "b h s c"]
    v: Float[Tensor, "b h s e"]
    lengths: Int[Tensor, " b"]

    @classmethod
    def of(
        cls, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], mask: Bool[Tensor, "b m"] | None, slots: int
    ) -> "KeyValueRing":
        cache = KeyValueCache.of(k, v, mask)
        k, v = (fill_ring(u, cache.lengths, slots) for u in (cache.k, cache.v))
        return cls(k, v, cache.lengths)

    def plus(self, k: Float[Tensor, "b h c"], v: Float[Tensor, "b h e"], **more: Tensor) -> Any:
        """One more token in each row, in place of the oldest; `more` as above."""
        k, v = put_in_ring(self.k, k, self.lengths), put_in_ring(self.v, v, self.lengths)
        return dataclasses.replace(self, k=k, v=v, lengths=self.lengths + 1, **more)

    @property
    def positions(self) -> Int[Tensor, "b s"]:
        """The position of the token in each slot, negative where there is none."""
        return ring_positions(self.lengths - 1, self.k.shape[2])
