"""Counting: operations and live bytes of a computation, exactly and the same on every machine; never seconds.

An operation is a multiplication or addition of a matrix product, or one number written by anything else.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from longspan.kernels.flops import formulas


@dataclass(frozen=True)
class CostCount:
    operations: int
    peak_bytes: int


def count(compute: Callable[[], Any]) -> CostCount:
    """Run `compute` and count what it does; bytes are the most held at once by tensors made inside it."""
    memory = _LiveBytes()
    flops = FlopCounterMode(display=False, custom_mapping=formulas())
    with flops, memory:
        compute()
    return CostCount(flops.get_total_flops() + memory.written, memory.peak)


class _LiveBytes(TorchDispatchMode):
    """Follows every storage from the operation that makes it until it is freed."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = self.written = 0
        self._storages: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = operation(*args, **(kwargs or {}))
        in_place = operation._schema.is_mutable
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if in_place or id(storage) not in given:  # else a view, which writes nothing
                    self.written += tensor.numel()
                if id(storage) not in given:
                    self._follow(storage)
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._storages:
            return

        def freed(_: weakref.ref) -> None:
            self.live -= size
            self._storages.pop(key, None)

        self._storages[key] = weakref.ref(storage, freed)
        self.live += size
        self.peak = max(self.peak, self.live)
