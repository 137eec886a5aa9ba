"""Typed changes to frozen dataclasses of settings, by dotted name: `override(protocol, {"recipe.steps": 500})`."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from longspan.core.errors import UnknownName, UsageError, did_you_mean, shortened

S = TypeVar("S")


def override(settings: S, changes: Mapping[str, Any]) -> S:
    """A copy with these settings changed; unknown names and values of the wrong type are refused.

    All changes are made at once: settings that must fit one another may be changed together, in any order.
    """
    return (
        _replace(settings, [(name, name.split("."), value) for name, value in changes.items()]) if changes else settings
    )


def _replace(owner: Any, changes: list[tuple[str, list[str], Any]]) -> Any:
    """`owner` with these changes: full name, rest of the dotted path, value."""
    fields: dict[str, Any] = {f.name: f for f in dataclasses.fields(owner)} if _is_group(owner) else {}
    values: dict[str, Any] = {}
    inside: dict[str, list[tuple[str, list[str], Any]]] = {}
    for name, (first, *rest), value in changes:
        if first not in fields:
            raise UnknownName(f"No setting {shortened(name)!r}.{did_you_mean(first, fields)}")
        if rest:
            inside.setdefault(first, []).append((name, rest, value))
        elif _is_group(group := getattr(owner, first)):
            names = ", ".join(f"{name}.{field.name}" for field in dataclasses.fields(group))
            raise UsageError(f"{name!r} is a group of settings; name one of {names}.")
        else:
            values[first] = _typed(name, value, fields[first].type)
    values |= {first: _replace(getattr(owner, first), own) for first, own in inside.items()}
    return dataclasses.replace(owner, **values)


def _is_group(value: Any) -> bool:
    return dataclasses.is_dataclass(value)


def _typed(name: str, value: Any, expected: Any) -> Any:
    is_union = typing.get_origin(expected) in (typing.Union, types.UnionType)
    choices = typing.get_args(expected) if is_union else (expected,)
    for choice in choices:
        origin = typing.get_origin(choice)
        if origin is typing.Literal and value in typing.get_args(choice):
            return value
        if choice is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if choice is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        parts = typing.get_args(choice)
        if parts[1:] == (...,) and isinstance(value, tuple):
            parts = parts[:1] * len(value)
        if origin is tuple and isinstance(value, tuple) and len(value) == len(parts):
            return tuple(_typed(name, one, part) for one, part in zip(value, parts, strict=True))
        if isinstance(choice, type) and choice not in (int, float) and isinstance(value, choice):
            return value
    wanted = " or ".join(_type_name(choice) for choice in choices)
    raise UsageError(f"Setting {name!r} takes {wanted}, got {shortened(repr(value))}; give a value of that type.")


def _type_name(expected: Any) -> str:
    if typing.get_origin(expected) is typing.Literal:
        return " or ".join(repr(choice) for choice in typing.get_args(expected))
    if typing.get_origin(expected) is tuple:
        return f"({', '.join(_type_name(part) for part in typing.get_args(expected))})"
    return {type(None): "None", ...: "..."}.get(expected) or expected.__name__
