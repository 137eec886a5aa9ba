"""Strings with a name and options: `performer(features=128)`, `my_file.py:Mine(window=4)`.

The same string is used on the command line, in cards and on boards. It is parsed as a literal, never evaluated. Parsing
takes linear time, and text beyond MAX_LENGTH is refused unread.
"""

import ast
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeGuard, TypeVar

from longspan.core.errors import UsageError, shortened

Value = None | bool | int | float | str | tuple
T = TypeVar("T")
MAX_LENGTH = 8_192  # twice the longest path of a file
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
        _refuse_long(text, text)
        target, bracket, inside = text.strip().partition("(")
        target = target.rstrip()
        if not target or ")" in target or (bracket and not inside.endswith(")")):
            raise _malformed(text, "brackets do not match")
        if not (_NAME.fullmatch(target) or _PLUGIN.fullmatch(target)):
            known = "neither a name nor path/file.py:Class nor package.module:Class"
            raise _malformed(text, f"{shortened(target)!r} is {known}")
        spec = cls(target, _parse_options(text, inside[:-1]) if inside[:-1].strip() else {})
        _refuse_long(text, str(spec))  # escapes make the canonical form longer, and it must be readable in turn
        return spec


def literal(text: str) -> Value:
    """The value of a Python literal, if it is one that options and settings can have; else ValueError."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"it has {len(text):,} characters, more than {MAX_LENGTH:,}")
    return _plain(_read(lambda: ast.literal_eval(text)))


def _read(parse: Callable[[], T]) -> T:
    """What Python's parser makes of a text; whatever it raises for a hostile one becomes a ValueError."""
    try:
        return parse()
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("it is not a plain number, string, bool, None or tuple") from error


def _parse_options(text: str, inside: str) -> dict[str, Value]:
    try:
        call = _read(lambda: ast.parse(f"f({inside}\n)", mode="eval").body)
    except ValueError as error:
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
        return _plain(_read(lambda: ast.literal_eval(node)))
    except ValueError as error:
        raise _malformed(text, f"the value of {name!r} is not a plain number, string, bool, None or tuple") from error


def _plain(value: object) -> Value:
    value = _tuples(value)
    if not _is_plain(value):
        raise ValueError("it is not a plain number, string, bool, None or tuple")
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


def _refuse_long(text: str, spelled: str) -> None:
    if len(spelled) > MAX_LENGTH:
        raise _malformed(text, f"it has {len(spelled):,} characters, more than {MAX_LENGTH:,}")


def _malformed(text: str, why: str) -> UsageError:
    return UsageError(f"Cannot read {shortened(text)!r}: {why}. Write it like performer(features=128).")
