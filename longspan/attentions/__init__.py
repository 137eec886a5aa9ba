"""The shelf of mechanisms: one flat file each, found by file name.

attentions.names()                          # every built-in and installed one
mechanism = attentions.get("performer(features=128)")
layer = mechanism(512, 8, Pattern.CAUSAL_SELF)
"""

import inspect
import sys
from dataclasses import dataclass
from typing import Any

from longspan.attentions.base import (
    ALL_PATTERNS,
    NONCAUSAL_PATTERNS,
    SELF_PATTERNS,
    SHELL,
    Attention,
    AttentionMeta,
    HeadwiseAttention,
    Pattern,
)
from longspan.attentions.bypass import refuse_bypassed
from longspan.attentions.states import Carry, DecodeState
from longspan.core.errors import UsageError, shortened
from longspan.core.registry import Option, Registry, canonical_target, checked_options, own_options
from longspan.core.spec import Spec, Value

# Options that became twins; cards and frozen protocols still use the old spelling: mechanism, option, value -> twin.
FORMER_OPTIONS: dict[tuple[str, str, Value], str] = {("probsparse", "released", True): "informer_probsparse"}

MAX_NAME = 500  # characters of a mechanism with its options: the length limit of a text on a card

registry = Registry(
    "attention",
    __name__,
    f"{__name__}.base:Attention",
    ("auxiliary", "base", "bypass", "relative", "state_space", "states"),
    ("released",),
)


@dataclass(frozen=True)
class Mechanism:
    """A mechanism with its options chosen: a factory for layers."""

    cls: type[Attention]
    options: dict[str, Value]
    target: str

    def __call__(self, dim: int, heads: int, pattern: Pattern, **shell: Any) -> Attention:
        settings: dict[str, Any] = {**shell, **self.options}
        layer = self.cls(dim, heads, pattern, **settings)
        if not self.cls.__module__.startswith("longspan."):
            layer.register_forward_hook(_check_shape, with_kwargs=True)
        return layer

    def __str__(self) -> str:
        """The canonical string: options sorted by name, defaults left out."""
        return str(Spec(self.target, self.options))

    @property
    def meta(self) -> AttentionMeta:
        return self.cls.meta

    @property
    def formula(self) -> str:
        """What the file says about the mathematics."""
        return inspect.cleandoc(sys.modules[self.cls.__module__].__doc__ or self.cls.__doc__ or "")

    def available_options(self) -> list[Option]:
        return own_options(self.cls, SHELL)


def names() -> list[str]:
    return registry.names()


def get(spec: "str | Spec | Mechanism") -> Mechanism:
    """The mechanism a string names; unknown names, options and values are refused with a sentence."""
    if isinstance(spec, Mechanism):
        return spec
    spec = _current(Spec.parse(spec) if isinstance(spec, str) else spec)
    cls = registry.find(spec.target)
    refuse_bypassed(cls)
    options = checked_options(cls, spec.options, SHELL, "attention", spec.target)
    mechanism = Mechanism(cls, options, canonical_target(spec))
    if len(name := str(mechanism)) > MAX_NAME:
        raise UsageError(
            f"The attention {shortened(name)!r} has {len(name):,} characters, more than the {MAX_NAME} that a card has "
            "room for; give fewer or shorter options."
        )
    return mechanism


def _check_shape(layer: Attention, inputs: tuple, named: dict[str, Any], y: Any) -> None:
    """Check the output shape, since a residual connection would silently broadcast an output that is too small."""
    layer._of_shape(y, "forward", tuple((inputs[0] if inputs else named["x"]).shape))


def _current(spec: Spec) -> Spec:
    """The twin, where a spec selects it by its former option."""
    for option, value in spec.options.items():
        if twin := FORMER_OPTIONS.get((spec.target, option, value)):
            return Spec(twin, {name: other for name, other in spec.options.items() if name != option})
    return spec


__all__ = [
    "ALL_PATTERNS",
    "NONCAUSAL_PATTERNS",
    "SELF_PATTERNS",
    "Attention",
    "AttentionMeta",
    "Carry",
    "DecodeState",
    "HeadwiseAttention",
    "Mechanism",
    "Pattern",
    "get",
    "names",
]
