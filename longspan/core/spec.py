"""Strings with a name and options: `performer(features=128)`, `my_file.py:Mine(window=4)`.

The same string is used on the command line, in cards and on boards. It is parsed as a literal, never evaluated.
"""

import ast
import math
import re
from dataclasses import dataclass, field
from typing import TypeGuard

from longspan.core.errors import UsageError

Value = None | bool | int | float | str | tuple
_SHAPE = re.compile(r"\s*(?P<target>[^()\s][^()]*?)\s*(?:\((?P<options>.*)\))?\s*", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*(?:-\w+)*")
_PLUGIN = re.compile(r".+:[A-Za-z_]\w*")


@dataclass(frozen=True)
class Spec:
    """A target (`performer`, `path/file.py:Class` or `package.module:Class`) and its options, sorted by name."""

    target: str
    options: dict[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        """The canonical form: options sorted by name, one spelling for each value.

        >>> str(Spec.parse("performer( features = 64 , eps=1E-4)"))
        'performer(eps=0.0001, features=64)'
        """
        if not self.options:
            return self.target
        inside = ", ".join(f"{name}={_spell(value)}" for name, value in sorted(self.options.items()))
        return f"{self.target}({inside})"

    @classmethod
    def parse(cls, text: str) -> "Spec":
        shape = _SHAPE.fullmatch(text)
        if shape is None:
            raise _malformed(text, "brackets do not match")
        target, inside = shape["target"], shape["options"]
        if not (_NAME.fullmatch(target) or _PLUGIN.fullmatch(target)):
            raise _malformed(text, f"{target!r} is neither a name nor path/file.py:Class nor package.module:Class")
        return cls(target, _parse_options(text, inside) if inside and inside.strip() else {})


def _parse_options(text: str, inside: str) -> dict[str, Value]:
    try:
        call = ast.parse(f"f({inside}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _malformed(text, "the options are not of the form name=value, name=value") from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise _malformed(text, "options must be given by name")
    options: dict[str, Value] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise _malformed(text, "options must be given by name")
        if keyword.arg in options:
            raise _malformed(text, f"option {keyword.arg!r} is given twice")
        options[keyword.arg] = _parse_value(text, keyword.arg, keyword.value)
    return options


def _parse_value(text: str, name: str, node: ast.expr) -> Value:
    if isinstance(node, ast.Name):  # bare words are strings: softmax(kernel=plain)
        return node.id
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise _malformed(text, f"the value of {name!r} is not a plain number, string, bool, None or tuple") from error
    value = _tuples(value)
    if not _is_plain(value):
        raise _malformed(text, f"the value of {name!r} is not a plain number, string, bool, None or tuple")
    return value


def _tuples(value: object) -> object:
    """Lists become tuples, at any depth."""
    return tuple(_tuples(part) for part in value) if isinstance(value, list | tuple) else value


def _is_plain(value: object) -> TypeGuard[Value]:
    if isinstance(value, tuple):
        return all(_is_plain(part) for part in value)
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return value.bit_length() <= 256  # Python refuses to print integers with thousands of digits
    return value is None or isinstance(value, str)


def _spell(value: Value) -> str:
    if isinstance(value, str):
        return f'"{"".join(_escape(letter) for letter in value)}"'
    if isinstance(value, tuple):
        return f"({', '.join(_spell(part) for part in value)}{',' if len(value) == 1 else ''})"
    return repr(value)


def _escape(letter: str) -> str:
    if letter in '\\"':
        return "\\" + letter
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")


def _malformed(text: str, why: str) -> UsageError:
    shown = text if len(text) <= 80 else text[:77] + "..."
    return UsageError(f"Cannot read {shown!r}: {why}. Write it like performer(features=128).")
