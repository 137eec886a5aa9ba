"""Refuse classes that override a method which one of their inherited methods would bypass.

`forward` defines a mechanism, and `packed`, `first`, `prefill`... are faster ways to the same result, written for the
`forward` (or the `attend`) of the class that defines them. On a ragged batch, a subclass that overrides only `forward`
would be trained without its override.
"""

from longspan.attentions.base import Attention, HeadwiseAttention
from longspan.core.errors import PluginError

ROWS, STEPS = ("packed", "first", "first_packed"), ("prefill", "step")
SHORTCUTS = {  # a definition -> the methods that compute the same in self patterns, and in causal ones
    "forward": (ROWS, STEPS),
    "attend": ((*ROWS, "attend_packed", "attend_first_packed"), (*STEPS, "begin", "advance")),
}
CALLED_BY = {"attend_packed": "packed", "attend_first_packed": "first_packed", "begin": "prefill", "advance": "step"}


def refuse_bypassed(cls: type[Attention]) -> None:
    """Refuse a class whose own definition a backbone would bypass."""
    found = [
        (definition, name, owner)
        for definition, (rows, steps) in SHORTCUTS.items()
        if hasattr(cls, definition)
        for name in (
            *(rows if any(not pattern.cross for pattern in cls.meta.patterns) else ()),
            *(steps if any(pattern.causal for pattern in cls.meta.patterns) else ()),
        )
        if (owner := _bypasses(cls, definition, name)) is not None
    ]
    if found:
        definition, _, owner = found[0]
        names = [name for one, name, its in found if (one, its) == (definition, owner)]
        raise PluginError(
            f"{cls.__name__} overrides {definition}, but inherits {', '.join(names)} from {owner.__name__}, which "
            f"{'do' if len(names) > 1 else 'does'} not call it; override {'them' if len(names) > 1 else 'it'} too, "
            "or extend Attention."
        )


def _bypasses(cls: type, definition: str, name: str) -> type | None:
    """The class that `name` comes from, if it was written for a different `definition` than that of `cls`."""
    owner = next((one for one in cls.__mro__ if name in vars(one)), None)
    if owner in (None, Attention) or (owner is HeadwiseAttention and definition == "attend"):
        return None  # these call `definition`
    if (caller := CALLED_BY.get(name)) and getattr(cls, caller) is not getattr(HeadwiseAttention, caller):
        return None  # never called
    line = (getattr(one, definition, None) for one in reversed(cls.__mro__) if issubclass(one, owner))
    first = next(method for method in line if method and not getattr(method, "__isabstractmethod__", False))
    return None if getattr(cls, definition) is first else owner
