"""Roofline floors: the least time in which a device could do the work of a mechanism.

    at = floor(mechanism, pattern, batch=4, heads=8, dim=64, length=16384, mode="forward", dtype=torch.bfloat16)
    at.seconds(ceilings("cuda", torch.bfloat16)), at.bound(...)

Bytes that must move, counting each tensor once for each time it has to be read or written:

    core, forward   read q, k, v; write y
    core, train     the same; then read dy and q, k, v again, and write dq, dk, dv
    layer, forward  read x, the context and the weights; write y
    layer, train    the same; then read dy, x, the context and the weights again, and write a gradient of each
    decode          the token in and out; the keys and values it looks at, or the state once; a layer's weights

An ablation that does not mix tokens need not even read them: it writes y, and in training a gradient of x.

Intermediate results need not leave the chip. Operations come from the formulas in `least_work.py` or, without one, from
the count of the call itself (`counted`). Bytes and operations are compared with the rates this device reached in the
same run, on a large copy and a large matrix product.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from longspan.attentions import HeadwiseAttention, Mechanism, Pattern
from longspan.core.errors import UsageError
from longspan.efficiency import least_work
from longspan.efficiency.latency import Spread, time_calls, warm_up
from longspan.efficiency.least_work import ProblemSize

Mode = Literal["forward", "train", "decode"]
Module = Literal["core", "layer", "block"]


@dataclass(frozen=True)
class Ceilings:
    """The highest rates measured on a device: bandwidth and arithmetic."""

    bytes_per_second: float
    operations_per_second: float
    method: str


@dataclass(frozen=True)
class Floor:
    """The bytes that must move and the operations that must be done."""

    bytes: int
    operations: int
    source: Literal["formula", "count", "bytes alone"]  # of the operations

    def seconds(self, ceilings: Ceilings) -> float:
        """The longer of the two, since they can overlap."""
        return max(self._moving(ceilings), self._computing(ceilings))

    def bound(self, ceilings: Ceilings) -> Literal["memory", "compute"]:
        return "memory" if self._moving(ceilings) >= self._computing(ceilings) else "compute"

    def _moving(self, ceilings: Ceilings) -> float:
        return self.bytes / ceilings.bytes_per_second

    def _computing(self, ceilings: Ceilings) -> float:
        return self.operations / ceilings.operations_per_second


def floor(
    mechanism: Mechanism,
    pattern: Pattern,
    *,
    batch: int,
    heads: int,
    dim: int,
    length: int,
    mode: Mode,
    dtype: torch.dtype,
    module: Module = "core",
    counted: int | None = None,
    parameters: int = 0,
    state_bytes: int | None = None,
) -> Floor:
    """The floor of one call, or of one token in `decode`; `dim` is that of a head, a context is as long as `length`.

    `counted` are the operations of the call, for mechanisms without a formula; `parameters` are those of a layer or
    block; `state_bytes` is the size of the decoding state. A mechanism without heads is a layer whatever `module` says.
    """
    size = ProblemSize.of(mechanism, pattern, length=length, heads=heads, dim=dim)
    headwise = issubclass(mechanism.cls, HeadwiseAttention)
    module = "layer" if module == "core" and not headwise else module
    if mode == "decode":
        return _step(mechanism, size, batch, dtype, module, counted, parameters, state_bytes)
    tokens = batch * heads * dim * length
    if not mechanism.cls.meta.mixes:
        numbers = tokens * (1 if mode == "forward" else 2)
    elif module == "core":
        numbers = tokens * (4 if mode == "forward" else 11)
    else:
        into = 2 if pattern.cross else 1
        numbers = tokens * (into + 1) + parameters
        if mode == "train":
            numbers += tokens * (1 + 2 * into) + 2 * parameters
    operations = _operations(mechanism, size, batch, module, train=mode == "train")
    return _floor(numbers * dtype.itemsize, operations, counted)


def _operations(mechanism: Mechanism, size: ProblemSize, batch: int, module: Module, *, train: bool) -> float | None:
    if module == "block":
        return None
    if not issubclass(mechanism.cls, HeadwiseAttention):
        work = least_work.layer(mechanism, size, batch)
        return None if work is None else work.operations(size.c, train=train)
    work = least_work.core(mechanism, size)
    if work is None:
        return None
    around = 4 * (size.n + size.m) * (size.c * size.heads) ** 2 if module == "layer" else 0  # q, k, v and out
    return batch * (size.heads * work.operations(size.c, train=train) + around * (3 if train else 1))


def _step(
    mechanism: Mechanism,
    size: ProblemSize,
    batch: int,
    dtype: torch.dtype,
    module: Module,
    counted: int | None,
    parameters: int,
    state_bytes: int | None,
) -> Floor:
    if not size.pattern.causal:
        raise UsageError(f"{mechanism} as {size.pattern} has no decoding, hence no floor; ask for a causal pattern.")
    token = batch * size.heads * size.c * dtype.itemsize
    moved = token * (4 if module == "core" else 2) + (0 if module == "core" else parameters * dtype.itemsize)
    found = least_work.step(mechanism, size)
    seen = None if found is None else found.keys
    if seen is not None:
        moved += 2 * seen * token
    elif state_bytes is not None:
        moved += state_bytes
    else:
        raise UsageError(f"The floor of a step of {mechanism} needs the size of its state; pass state_bytes.")
    operations = None
    if found is not None and module != "block":
        around = 2 * (2 if size.pattern.cross else 4) * (size.c * size.heads) ** 2 if module == "layer" else 0
        operations = batch * (size.heads * found.work.operations(size.c, train=False) + around)
    return _floor(moved, operations, counted)


def _floor(moved: int, operations: float | None, counted: int | None) -> Floor:
    if operations is not None:
        return Floor(moved, round(operations), "formula")
    return Floor(moved, 0, "bytes alone") if counted is None else Floor(moved, counted, "count")


# --------------------------------------------------------------------------------------------- what this device can do

REPEATS = 20
COPIED = {"cuda": 2**30, "cpu": 2**26}  # bytes, many times any cache
SIDE = {"cuda": 8192, "cpu": 1024}  # of the matrices


def ceilings(device: str, dtype: torch.dtype) -> Ceilings:
    """Bytes and operations per second of this device, each the median of several large copies or products."""
    kind = torch.device(device).type
    kind = kind if kind in COPIED else "cpu"
    nbytes, side = COPIED[kind], SIDE[kind]
    if kind == "cuda":  # a small or a busy GPU gets a smaller copy
        free, _ = torch.cuda.mem_get_info(device)
        nbytes = min(nbytes, 2 ** int(math.log2(max(free // 8, 2**20))))
    source = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copying = _median(functools.partial(target.copy_, source), device)
    del source, target
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(a)
    multiplying = _median(lambda: torch.mm(a, b, out=product), device)
    clock = "device events" if kind == "cuda" else "wall clock"
    name = str(dtype).removeprefix("torch.")
    return Ceilings(
        2 * nbytes / copying,
        2 * side**3 / multiplying,
        f"a copy of {nbytes / 2**20:.0f} MiB within the device and a product of two {side} x {side} matrices of "
        f"{name}, median of {REPEATS} each by {clock}",
    )


def _median(compute: Callable[[], Any], device: str) -> float:
    warm_up(compute, device, calls=3)
    return Spread.of(time_calls(compute, device, count=REPEATS)).median
