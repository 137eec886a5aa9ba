"""Counting: operations and live bytes of a computation, exactly and the same on every machine.

An operation is a multiplication or addition of a matrix product, or one number written by anything else. What numpy,
Python or an operator that torch does not know do is not counted; their time is reported as hidden seconds.
"""

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from longspan.kernels.flops import formulas

OWN = ("aten", "prim", "prims")  # torch's own operators


@dataclass(frozen=True)
class CostCount:
    operations: int
    peak_bytes: int
    by_operator: dict[str, int]  # operations of each, named like "forward of aten.bmm"
    peak_at: str  # the operator that made the largest tensor alive at the peak, named likewise
    seconds: float  # of processor time
    hidden_seconds: float  # of these, outside the counted operators


def count(compute: Callable[[], Any], backward: Callable[[Any], Any] | None = None) -> CostCount:
    """Run `compute`, then `backward` on its result, and count what they do.

    Bytes are the peak held at once by tensors made inside.
    """
    memory, operations, result = _LiveBytes(), Counter(), None
    passes = {"forward": lambda _: compute(), "backward": backward}
    for name, run in passes.items():
        if run is None:
            continue
        flops = FlopCounterMode(display=False, custom_mapping=formulas())
        memory.name = name
        with flops, memory:
            start = process_time()
            result = run(result)
            memory.seconds += process_time() - start
        for operator, number in flops.get_flop_counts().get("Global", {}).items():
            operations[f"{name} of {operator}"] += number
    operations += memory.written
    times = memory.seconds, memory.seconds - memory.seconds_inside
    return CostCount(operations.total(), memory.peak, dict(operations), memory.peak_at, *times)


class _LiveBytes(TorchDispatchMode):
    """Tracks every storage from the operation that makes it until it is freed, and times the operations."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self.seconds = self.seconds_inside = 0.0
        self.name, self.peak_at = "forward", ""
        self.written: Counter[str] = Counter()
        self._storages: dict[int, tuple[weakref.ref, int, str]] = {}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        start = process_time()
        result = operation(*args, **(kwargs or {}))
        if _is_counted(operation):
            self.seconds_inside += process_time() - start
        in_place = operation._schema.is_mutable
        called = f"{self.name} of {operation._overloadpacket}"
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if in_place or id(storage) not in given:  # else a view, which writes nothing
                    self.written[called] += tensor.numel()
                if id(storage) not in given:
                    self._follow(storage, called)
        return result

    def _follow(self, storage: torch.UntypedStorage, called: str) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._storages:
            return

        def freed(_: weakref.ref) -> None:
            self.live -= size
            self._storages.pop(key, None)

        self._storages[key] = weakref.ref(storage, freed), size, called
        self.live += size
        if self.live > self.peak:
            self.peak = self.live
            self.peak_at = max(self._storages.values(), key=lambda kept: kept[1])[2]


def _is_counted(operation: Any) -> bool:
    """Whether the operations of this operator are known: torch's own, and those with a formula."""
    packet = operation._overloadpacket
    return operation.namespace in OWN or packet in flop_registry or packet in formulas()
