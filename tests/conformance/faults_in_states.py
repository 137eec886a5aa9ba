"""Mechanisms that decode correctly only as long as a state is used once, with its mask and with all its rows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.attentions import DecodeState, Pattern
from longspan.kernels.packing import left_align, real
from tests.conformance.right import Plain, declare

CAUSAL = (Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS)


@dataclass
class Kept(DecodeState):
    """Keys and values in a cache with room for more, and how much of it each row has used."""

    k: Tensor
    v: Tensor
    lengths: Tensor


class Cached(Plain):
    """Right: decoding with a cache of keys and values."""

    meta = declare(patterns=CAUSAL)
    kept: type = Kept

    def begin(self, k, v, *, key_mask=None):
        (k, lengths), (v, _) = (left_align(u.transpose(1, 2), key_mask) for u in (k, v))
        room = k.new_zeros(len(k), 0 if self.pattern.cross else 64, *k.shape[2:])
        return self.kept(torch.cat([k, room], dim=1), torch.cat([v, room], dim=1), lengths)

    def advance(self, q, k, v, state):
        if k is not None:
            state = self.with_token(state, k, v)
        scores = torch.einsum("bhc,bmhc->bhm", q, state.k) / q.shape[-1] ** 0.5
        hidden = ~real(state.lengths, state.k.shape[1])[:, None]
        p = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1).masked_fill(hidden, 0)
        return torch.einsum("bhm,bmhc->bhc", p.to(state.v.dtype), state.v), state

    def with_token(self, state, k, v):
        at = (torch.arange(len(k), device=k.device), state.lengths)
        return self.kept(state.k.index_put(at, k), state.v.index_put(at, v), state.lengths + 1)


class WritesIntoItsCache(Cached):
    """A step writes its key into the cache that the old state still holds."""

    meta = declare(patterns=(Pattern.CAUSAL_SELF,))

    def with_token(self, state, k, v):
        at = (torch.arange(len(k), device=k.device), state.lengths)
        for cache, token in ((state.k, k), (state.v, v)):
            with torch.no_grad():
                cache.data[at] = token
        return self.kept(state.k, state.v, state.lengths + 1)


class CountsInPlace(Cached):
    """A step counts up the lengths of the state it was given."""

    meta = declare(patterns=(Pattern.CAUSAL_SELF,))

    def with_token(self, state, k, v):
        at = (torch.arange(len(k), device=k.device), state.lengths.clone())
        state.lengths += 1
        return self.kept(state.k.index_put(at, k), state.v.index_put(at, v), state.lengths)


@dataclass
class SelectedInPlace(Kept):
    """Choosing rows changes the state itself, which a beam search needs once more."""

    def select(self, rows):
        for name, value in self._tensors().items():
            setattr(self, name, value.index_select(0, rows))
        return self


class SelectsInPlace(Cached):
    kept = SelectedInPlace


@dataclass
class OfFixedSize(Kept):
    """Rows are copied over old ones, so that there are never more or fewer."""

    def select(self, rows):
        chosen = super().select(rows)
        full = {name: value.clone() for name, value in self._tensors().items()}
        for name, value in full.items():
            value[: len(rows)] = getattr(chosen, name)[: len(value)]
        return OfFixedSize(**full)


class NeverFewerRows(Cached):
    kept = OfFixedSize


@dataclass
class MaskedContext(DecodeState):
    """Keys and values of a context and which of them are real; without a mask that is one row for all."""

    k: Tensor
    v: Tensor
    seen: Tensor


class NoMaskNoRows(Cached):
    """Without a context mask the state has one row of visible keys, from which no second row can be chosen."""

    meta = declare(patterns=(Pattern.CAUSAL_CROSS,))

    def begin(self, k, v, *, key_mask=None):
        seen = k.new_ones(1, k.shape[2], dtype=torch.bool) if key_mask is None else key_mask
        return MaskedContext(k, v, seen)

    def advance(self, q, k, v, state):
        scores = torch.einsum("bhc,bhmc->bhm", q, state.k) / q.shape[-1] ** 0.5
        hidden = ~state.seen[:, None]
        p = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1).masked_fill(hidden, 0)
        return torch.einsum("bhm,bhmc->bhc", p.to(state.v.dtype), state.v), state
