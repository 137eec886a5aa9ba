"""Shapes in signatures, executed once for each combination of shapes: the second time would say the same again.

What jaxtyping finds depends on the types, shapes and precisions of arguments and results alone, so that a call like an
earlier one needs no second look, which takes longer than most of the functions looked at.
"""

import functools
import inspect
from collections.abc import Callable, Hashable
from types import FunctionType
from typing import Any

import jaxtyping
import torch
from jaxtyping import install_import_hook

_every_time = jaxtyping.jaxtyped


def execute_shapes(modules: list[str]) -> None:
    """In every function of these modules, which must not have been imported yet."""
    jaxtyping.jaxtyped = once  # what the hook writes above each function
    install_import_hook(modules, "beartype.beartype")


def once(*, typechecker: Callable) -> Callable:
    """In the place of `jaxtyping.jaxtyped`."""
    every_time = _every_time(typechecker=typechecker)

    def decorate(function):
        if not inspect.isfunction(function) or inspect.isgeneratorfunction(function):
            return every_time(function)
        checked, seen = every_time(function), {}

        @functools.wraps(function)
        def call(*args, **kwargs):
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            given = kind((args, kwargs))
            if not hashable(given):  # where torch traces, a length may be a symbol
                return checked(*args, **kwargs)
            if given not in seen:
                y = checked(*args, **kwargs)
                seen[given] = {kind(y)}
            else:
                y = function(*args, **kwargs)
                if (found := kind(y)) not in seen[given]:
                    every_time(giving(y, function))(*args, **kwargs)
                    seen[given].add(found)
            return y

        return call

    return decorate


def giving(y: Any, function: FunctionType) -> FunctionType:
    """A function that gives this, with the signature and the globals of another."""

    def give(*args, **kwargs):
        return y

    constant = FunctionType(give.__code__, function.__globals__, closure=give.__closure__)
    return functools.wraps(function)(constant)


def kind(x: Any) -> Hashable:
    """All that an annotation can ask about a value; words for themselves, since it may list them."""
    if isinstance(x, torch.Tensor):
        return x.shape, x.dtype
    if isinstance(x, tuple | list):
        return type(x), *map(kind, x)
    if isinstance(x, dict):
        return dict, *((name, kind(value)) for name, value in x.items())
    if isinstance(x, str):
        return x
    return (type(x), getattr(x, "shape", None), x.dtype) if hasattr(x, "dtype") else type(x)


def hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True
