"""JSON laid out for people and for diffs: one field a line, one measured point a line."""

import json
import math
from collections.abc import Callable
from typing import Any

WIDTH = 120


def dumps(content: Any, *, sort_keys: bool = False, ensure_ascii: bool = False) -> str:
    """Like `json.dumps`, with line breaks where a reader wants them. NaN and infinity are refused.

    What fits on a line is one line. An object that does not fit has a line for each field, a list of objects or lists
    a line for each entry, however long: a point of a measurement or of a learning curve is one line. Only an entry
    that holds a list of objects itself is broken up.

    >>> print(dumps({"kind": "run", "curve": [{"step": 1}, {"step": 2}]}))
    {
     "kind": "run",
     "curve": [
      {"step": 1},
      {"step": 2}
     ]
    }
    """
    text = json.dumps(content, allow_nan=False, sort_keys=sort_keys)
    encode = json.JSONEncoder(ensure_ascii=ensure_ascii).encode
    return _lay_out(json.loads(text), 0, encode, broken=True)  # parsed: plain lists, and names that are text


def printed(content: Any) -> str:
    r"""JSON for standard output: what is not printable is written as \uXXXX, a number that is not finite as null."""
    text = json.dumps(finite(content), indent=1, ensure_ascii=False, allow_nan=False)
    return "".join(letter if letter.isprintable() or letter == "\n" else _escape(letter) for letter in text)


def finite(content: Any) -> Any:
    """The same with None for numbers that are NaN or infinite: a ratio of numbers on cards may overflow."""
    if isinstance(content, dict):
        return {name: finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _escape(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def _lay_out(value: Any, indent: int, encode: Callable[[Any], str], *, broken: bool = False, used: int = 0) -> str:
    """`broken` if it must not be one line; `used` characters of the line come before the value."""
    line = encode(value)
    if not broken and not _has_objects(value) and indent + used + len(line) < WIDTH:
        return line
    if isinstance(value, dict) and value:
        names = [f"{encode(name)}: " for name in value]
        fields = zip(names, value.values(), strict=True)
        return _block(
            "{}", [name + _lay_out(item, indent + 1, encode, used=len(name)) for name, item in fields], indent
        )
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return _block("[]", [_entry(item, indent + 1, encode) for item in value], indent)
    return line


def _entry(item: Any, indent: int, encode: Callable[[Any], str]) -> str:
    if isinstance(item, dict) and any(map(_has_objects, item.values())):
        return _lay_out(item, indent, encode, broken=True)
    return encode(item)


def _has_objects(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _block(brackets: str, parts: list[str], indent: int) -> str:
    lines = ",\n".join(" " * (indent + 1) + part for part in parts)
    return f"{brackets[0]}\n{lines}\n{' ' * indent}{brackets[1]}"
