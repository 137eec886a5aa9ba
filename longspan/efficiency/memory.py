"""Memory of a computation: the peak bytes that tensors hold during a call, and what a forward pass keeps.

A GPU's allocator keeps that count itself and sees everything. On a CPU the tensors that operations return are
tracked one by one; scratch space inside an operation stays unseen, so the two methods are never compared.
"""

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longspan.conformance.counting import count
from longspan.core.meter import peak_memory_bytes, reset_peak_memory, synchronize

METHODS = {"cuda": "allocator", "cpu": "live tensors"}


def peak_bytes(compute: Callable[[], Any], device: str, *, held: Iterable[Tensor] = ()) -> int:
    """Peak bytes held during one call; `held` are the tensors that exist before it and outlive it."""
    if device.startswith("cuda"):
        synchronize(device)
        reset_peak_memory(device)
        compute()
        synchronize(device)
        return peak_memory_bytes(device)
    return sum(_storages(held).values()) + count(compute).peak_bytes


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of one call, inputs and weights included; `activations` are what a forward pass leaves behind."""

    allocated: int
    reserved: int | None  # by the allocator, in the segments it requests from the device; None on a CPU
    activations: int | None
    method: str


def memory_of(
    compute: Callable[[], Any], device: str, *, held: Iterable[Tensor] = (), forward: Callable[[], Any] | None = None
) -> MemoryUse:
    """The peak memory of one call; where `forward` is given, also what stays alive after it for the backward pass.

    Other tensors on the device, such as inputs of other calls, are not counted.
    """
    held = list(held)
    if not device.startswith("cuda"):
        activations = None if forward is None else _kept_for_backward(forward, held)
        return MemoryUse(peak_bytes(compute, device, held=held), None, activations, METHODS["cpu"])
    torch.cuda.empty_cache()
    own = sum(_storages(held).values())
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    peak = own + peak_bytes(compute, device) - allocated
    most = own + torch.cuda.max_memory_reserved() - reserved
    activations = None
    if forward is not None:
        before = torch.cuda.memory_allocated()
        kept = forward()
        activations = torch.cuda.memory_allocated() - before
        del kept
    return MemoryUse(peak, max(most, peak), activations, METHODS["cuda"])


def _kept_for_backward(forward: Callable[[], Any], held: Iterable[Tensor]) -> int:
    """Bytes of the tensors that autograd saves, and of the output, except what was there before."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept.update(_storages([tensor]))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = forward()
    kept.update(_storages([output]))
    return sum(size for place, size in kept.items() if place not in _storages(held))


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Size by data pointer, so that two views of one tensor count once."""
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; libraries below torch say it only in the message."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    words = ("out of memory", "can't allocate memory", "alloc_failed")
    return isinstance(error, RuntimeError) and any(word in text for word in words)


def release(device: str) -> None:
    """Free what is no longer referenced, so that the next measurement starts from an empty device.

    On a CPU there is nothing to give back: a tensor frees its memory with its last reference.
    """
    if device.startswith("cuda"):
        gc.collect()
        torch.cuda.empty_cache()
