"""Precision: exponentials, cumulative sums, FFTs and recurrent states run in single precision or better.

Autocast would round matrix products to bfloat16 whatever their operands are, so it is switched off.
"""

import contextlib

import torch
import torch._functorch.config
from torch import Tensor


def at_least_single(x: Tensor) -> Tensor:
    """The tensor in float32, or float64 if it is that already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def bfloat16_or_single(x: Tensor) -> Tensor:
    """The tensor as kernels take it: bfloat16 stays, and all else is in float32 or better, as float16 may overflow."""
    return x if x.dtype == torch.bfloat16 else at_least_single(x)


def as_operand(x: Tensor, weight: Tensor) -> Tensor:
    """The tensor as an operand beside `weight`: in its type, except that under autocast a narrower type is kept."""
    if x.element_size() < weight.element_size() and torch.is_autocast_enabled(x.device.type):
        return x
    return x.to(weight.dtype)


def without_autocast(x: Tensor) -> contextlib.AbstractContextManager:
    """A context on the device of `x` in which operations keep the precision of their operands."""
    kind = x.device.type  # asking torch whether the device has autocast would cause a graph break
    return contextlib.nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)


def compile_backward_without_autocast() -> None:
    """From here on, compiled code has the same backward pass as eager code.

    By default torch compiles one that runs under the autocast of the forward pass, and so rounds products that are kept
    in single precision here: by 7 % of a gradient that comes through the inverse of a kernel.
    """
    torch._functorch.config.backward_pass_autocast = "off"
