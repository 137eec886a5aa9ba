"""Shapes in signatures, checked once for each combination of shapes: a second time would give the same result.

What jaxtyping finds depends only on the types, shapes and dtypes of arguments and results, so a call like an earlier
one needs no second check, which takes longer than most of the checked functions. Where all axes are plain names, it
depends on which sizes are equal, and not on the sizes.
"""

import functools
import inspect
import re
from collections.abc import Callable, Hashable, Iterator
from types import FunctionType
from typing import Any, Literal, get_args, get_origin

import jaxtyping
import torch
from jaxtyping import install_import_hook

_every_time = jaxtyping.jaxtyped


def execute_shapes(modules: list[str]) -> None:
    """Check shapes in every function of these modules, which must not have been imported yet."""
    jaxtyping.jaxtyped = once  # the decorator that the hook adds to each function
    install_import_hook(modules, "beartype.beartype")


def once(*, typechecker: Callable) -> Callable:
    """Replaces `jaxtyping.jaxtyped`."""
    every_time = _every_time(typechecker=typechecker)

    def decorate(function):
        if not inspect.isfunction(function) or inspect.isgeneratorfunction(function):
            return every_time(function)
        checked, seen, alike = every_time(function), {}, set()
        by_name = has_named_axes_only(function)

        @functools.wraps(function)
        def call(*args, **kwargs):
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            try:
                given = *map(kind, args), *((name, kind(value)) for name, value in kwargs.items())
                results = seen.get(given)
            except TypeError:  # under torch tracing a length may be a symbol, which is unhashable
                return checked(*args, **kwargs)
            if results is None:
                known = by_name and equalities(given) in alike
                y = (function if known else checked)(*args, **kwargs)
                results = seen[given] = set() if known else {kind(y)}
                if by_name and not known:
                    alike.update((equalities(given), equalities((given, kind(y)))))
            else:
                y = function(*args, **kwargs)
            if (found := kind(y)) not in results:
                if not (by_name and equalities((given, found)) in alike):
                    every_time(giving(y, function))(*args, **kwargs)
                    alike.add(equalities((given, found)))
                results.add(found)
            return y

        return call

    return decorate


def giving(y: Any, function: FunctionType) -> FunctionType:
    """A function that returns `y`, with the signature and globals of `function`."""

    def give(*args, **kwargs):
        return y

    constant = FunctionType(give.__code__, function.__globals__, closure=give.__closure__)
    return functools.wraps(function)(constant)


NAMED = re.compile(r"\.\.\.|\*?[A-Za-z_]\w*")


def has_named_axes_only(function: FunctionType) -> bool:
    """Whether no axis is a number, a sum or broadcastable: then only equal sizes matter."""
    annotations = function.__annotations__.values()
    return all(NAMED.fullmatch(axis) for annotation in annotations for axis in _axes(annotation))


def _axes(annotation: Any) -> Iterator[str]:
    """The axes of all arrays in an annotation, however deep."""
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        yield from annotation.dim_str.split()
    elif get_origin(annotation) is not Literal:  # strings are compared by value anyway
        for argument in get_args(annotation):
            yield from _axes(argument)


def equalities(kinds: Hashable) -> Hashable:
    """The same kinds with sizes numbered in order of appearance."""
    numbers: dict[int, int] = {}

    def numbered(kinds):
        if isinstance(kinds, torch.Size):
            return torch.Size, *(numbers.setdefault(size, len(numbers)) for size in kinds)
        return tuple(map(numbered, kinds)) if isinstance(kinds, tuple) else kinds

    return numbered(kinds)


# Annotations can only depend on the type of these; a module has no shape, and its attribute lookup is slow.
PLAIN = (bool, int, float, type(None), torch.nn.Module)


def kind(x: Any) -> Hashable:
    """All that an annotation can test about a value; strings stand for themselves, since it may list them."""
    if isinstance(x, torch.Tensor):
        return x.shape, x.dtype
    if isinstance(x, PLAIN):
        return type(x)
    if isinstance(x, str):
        return x
    if isinstance(x, tuple | list):
        return type(x), *map(kind, x)
    if isinstance(x, dict):
        return dict, *((name, kind(value)) for name, value in x.items())
    return (type(x), getattr(x, "shape", None), x.dtype) if hasattr(x, "dtype") else type(x)
