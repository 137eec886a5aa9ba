"""A matrix of cells in a file, so that one file stands for one table of numbers: `longspan run matrix.toml`.

tasks = ["starter"]                       # tasks, suites or file.py:Class
mechanisms = ["softmax", "linear"]
tier = "smoke"                            # these are the defaults: longspan, smoke, one seed
seeds = 3

[set]                                     # as --set
recipe.steps = 500

[[part]]                                  # cells with other settings; what it does not say is as above
tasks = ["lm"]
mechanisms = ["performer(features=64)"]
add = {model.layers = 2}                  # to [set]; set = {} replaces it
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from longspan.core.errors import UsageError, did_you_mean, shortened


@dataclass(frozen=True)
class Part:
    """Every mechanism on every task with every seed."""

    tasks: tuple[str, ...]
    mechanisms: tuple[str, ...]
    pattern: str | None = None
    protocol: str = "longspan"
    tier: str = "smoke"
    seeds: int = 1
    overrides: Mapping[str, Any] = field(default_factory=dict)
    backbone: str | None = None  # in place of the tasks' own


KEYS = {one.name for one in fields(Part) if one.name != "overrides"} | {"set", "add"}
LARGEST = 2**20  # bytes


def read_matrix(path: Path) -> list[Part]:
    """The parts of a file; anything wrong in it raises an error of one sentence."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"The matrix {path} cannot be read: {error.strerror or error}; name a file.") from None
    try:
        content = tomllib.loads(text[:LARGEST].decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(
            f"The matrix {path} cannot be read ({shortened(str(error), 200)}); write it as TOML."
        ) from None
    parts = content.pop("part", [])
    if not isinstance(parts, list) or not all(isinstance(one, dict) for one in parts):
        raise UsageError(f"{path}: parts are tables; begin each with a line [[part]].")
    whole = [content, *parts] if not parts or {"tasks", "mechanisms"} <= set(content) else parts
    return [_part(one if one is content else content | one, path) for one in whole]


def _part(words: Mapping[str, Any], path: Path) -> Part:
    for name in words:
        if name not in KEYS:
            raise UsageError(f"{path} has no use for {name!r}.{did_you_mean(name, KEYS)}")
    for name in ("tasks", "mechanisms"):
        named = words.get(name)
        if not isinstance(named, list) or not named or not all(isinstance(one, str) for one in named):
            raise UsageError(f'{path}: {name} is a list of names, got {named!r}; write it like {name} = ["softmax"].')
    for name, kind in (
        ("pattern", str),
        ("backbone", str),
        ("protocol", str),
        ("tier", str),
        ("seeds", int),
        ("set", dict),
        ("add", dict),
    ):
        if name in words and (not isinstance(words[name], kind) or isinstance(words[name], bool)):
            raise UsageError(f"{path}: {name} must be of type {kind.__name__}, got {words[name]!r}.")
    if words.get("seeds", 1) < 1:
        raise UsageError(f"{path}: seeds is the number of seeds, at least 1, got {words['seeds']}.")
    plain = {name: words[name] for name in ("pattern", "protocol", "tier", "seeds", "backbone") if name in words}
    tasks, mechanisms = (tuple(dict.fromkeys(words[name])) for name in ("tasks", "mechanisms"))
    changes = {name: value for key in ("set", "add") for name, value in _flat(words.get(key, {}))}
    return Part(tasks, mechanisms, **plain, overrides=changes)


def _flat(table: Mapping[str, Any], above: str = "") -> Any:
    """Flatten the nested tables that TOML makes of `recipe.steps = 500`; lists become tuples, as with --set."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, tuple(value) if isinstance(value, list) else value
