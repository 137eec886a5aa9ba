"""What a checkpoint belongs to: everything that decides the numbers of a run, saved inside it and compared before use.

belongs = Belongs({"run": {"task": "listops", "seed": 0, ...}, "precision": "fp32", "code": {...}, ...})
list(belongs.differences(saved))        # ["precision was bf16, is fp32"]
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from longspan.results.code_identity import same_code

SHOWN = 60  # characters of a value in a sentence
DEEPEST = 12  # levels of facts; no run has more


@dataclass(frozen=True)
class Belongs:
    """Plain JSON values by name; `code` is the identity of the mechanism's code, compared as cards are."""

    facts: Mapping[str, Any] = field(default_factory=dict)

    def differences(self, saved: Any) -> Iterator[str]:
        """How the facts saved in a checkpoint differ, a few words each; `saved` may be anything."""
        if not isinstance(saved, dict):
            yield "it does not say what it belongs to"
            return
        now, before = dict(self.facts), dict(saved)
        code, old = now.pop("code", {}), before.pop("code", {})
        if not (_is_code(old) and same_code(old, code)):
            yield "the code of the mechanism has changed"
        mine, theirs = dict(_leaves(now)), dict(_leaves(before))
        for name in sorted(mine.keys() | theirs.keys()):
            if (was := theirs.get(name, "not given")) != (here := mine.get(name, "not given")):
                yield f"{name} was {was:.{SHOWN}}, is {here:.{SHOWN}}"


def _leaves(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Every plain value as text, by its dotted name: `run.settings.recipe.steps`."""
    if depth > DEEPEST:
        yield name, "nested too deeply"
    elif isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}" if name else str(key), depth + 1)
    elif isinstance(value, list | tuple) and value:
        for place, item in enumerate(value):
            yield from _leaves(item, f"{name}[{place}]", depth + 1)
    else:
        plain = value is None or isinstance(value, str | int | float | dict | list | tuple)
        yield name, repr(value).strip("'") if plain else type(value).__name__


def _is_code(code: Any) -> bool:
    """Whether this has the form of a code identity, so that `same_code` can compare it."""
    if not isinstance(code, dict):
        return False
    prints = code.get("mechanism_fingerprint") or {}
    return isinstance(prints, dict) and all(isinstance(parts, dict) and _are_lists(parts) for parts in prints.values())


def _are_lists(parts: dict) -> bool:
    """Whether all values are lists of numbers."""
    return all(isinstance(part, list) and all(type(n) in (int, float) for n in part) for part in parts.values())
