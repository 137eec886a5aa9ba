"""Counting the parameters of a network, in total and by part."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


def count(model: nn.Module) -> dict[str, Any]:
    """Parameters in total and by part; the layers of a stack are one part."""
    parts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        words = [word for word in name.split(".")[:-1] or [name] if not word.isdigit()]
        part = ".".join(words[:2])
        parts[part] = parts.get(part, 0) + parameter.numel()
    return {"total": sum(parts.values()), "parts": parts}


class Unfilled(TorchFunctionMode):
    """Skips the initialisation of weights, which tensors on the meta device do not need."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return func(*args, **(kwargs or {}))


def count_shapes(build: Callable[[], nn.Module]) -> dict[str, Any]:
    """The same for a network of which only the shapes are built."""
    return count(without_numbers(build))


def without_numbers(build: Callable[[], nn.Module]) -> nn.Module:
    """A network that is built on the meta device."""
    try:
        with torch.device("meta"), Unfilled():
            return build()
    except (NotImplementedError, RuntimeError):  # a mechanism that reads its initial values needs real ones
        return build()
