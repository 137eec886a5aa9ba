"""Memory of a computation: the most bytes that tensors hold at one moment of a call.

A GPU's allocator keeps that count itself and sees everything. On a CPU the tensors that operations give out are
followed one by one; scratch space inside an operation stays unseen, so the two methods are never compared.
"""

import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from longspan.conformance.counting import count
from longspan.core.meter import peak_memory_bytes, reset_peak_memory, synchronize

METHODS = {"cuda": "allocator", "cpu": "live tensors"}


def peak_bytes(compute: Callable[[], Any], device: str, *, held: Iterable[Tensor] = ()) -> int:
    """Most bytes held during one call; `held` are the tensors that exist before it and outlive it."""
    if device.startswith("cuda"):
        synchronize(device)
        reset_peak_memory(device)
        compute()
        synchronize(device)
        return peak_memory_bytes(device)
    before = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held}
    return sum(before.values()) + count(compute).peak_bytes


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; libraries below torch say it only in words."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    words = ("out of memory", "can't allocate memory", "alloc_failed")
    return isinstance(error, RuntimeError) and any(word in text for word in words)


def release(device: str) -> None:
    """Give back what nobody holds any more, so that the next measurement starts from an empty device.

    On a CPU there is nothing to give back: a tensor returns its memory when the last name for it goes.
    """
    if device.startswith("cuda"):
        gc.collect()
        torch.cuda.empty_cache()
