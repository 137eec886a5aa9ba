"""Precision: exponentials, cumulative sums, FFTs and recurrent states run in single precision or better.

Under autocast a matrix product would be rounded to bfloat16 again whatever its operands are, so it is switched off.
"""

import contextlib

import torch
from torch import Tensor


def at_least_single(x: Tensor) -> Tensor:
    """The tensor in float32, or float64 if it is that already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def without_autocast(x: Tensor) -> contextlib.AbstractContextManager:
    """A stretch of code on the device of `x` whose operations keep the precision of their operands."""
    kind = x.device.type  # asked of the name, since asking torch would cut a compiled graph in two
    return contextlib.nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)
