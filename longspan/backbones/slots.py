"""Slots: which mechanism goes into which place of a network.

    model = Backbone(Slots(attentions.get("abc"), frozenset({Pattern.CAUSAL_SELF})), ...)

The backbone calls one factory for every slot with that slot's pattern. Slots of the patterns on trial get the mechanism
on trial; the others get what the protocol has there, softmax by default.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from longspan import attentions
from longspan.attentions import Attention, Mechanism, Pattern

AttentionFactory = Callable[..., Attention]  # (dim, heads, pattern, **shell)


@dataclass(frozen=True)
class Slots:
    """The factory a backbone is given: the mechanism on trial for some patterns, the protocol's own elsewhere."""

    mechanism: Mechanism
    patterns: frozenset[Pattern]
    others: Mapping[Pattern, str] = field(default_factory=dict)

    def __call__(self, dim: int, heads: int, pattern: Pattern, **shell: Any) -> Attention:
        return self.at(pattern)(dim, heads, pattern, **shell)

    def at(self, pattern: Pattern) -> Mechanism:
        """The mechanism in the slots of a pattern."""
        return self.mechanism if pattern in self.patterns else self._own[pattern]

    @cached_property
    def _own(self) -> dict[Pattern, Mechanism]:
        """What the protocol has in the slots of each pattern."""
        return {pattern: attentions.get(self.others.get(pattern, "softmax")) for pattern in Pattern}


def mlp_beside(*slots: Attention) -> bool:
    """Whether a layer with these slots has an MLP as well; a mechanism that owns its block replaces it."""
    return not any(slot.meta.owns_block for slot in slots)


def adds_loss(model: nn.Module) -> bool:
    """Whether the network is training and a slot adds a loss of its own, which needs the padding mask."""
    return model.training and any(slot.meta.auxiliary_loss for slot in slots_of(model))


def filled(model: nn.Module) -> dict[str, str]:
    """The mechanism in every slot of a network, by module name: {"blocks.0.attention": "Abc (causal_self)"}."""
    return {name: f"{type(slot).__name__} ({slot.pattern})" for name, slot in _by_name(model).items()}


def slots_of(model: nn.Module) -> list[Attention]:
    """The mechanism in every slot of a network, in the order of its layers."""
    return list(_by_name(model).values())


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers of a network, in order: the members of every `nn.ModuleList` that contains a slot."""
    found: list[nn.Module] = []
    for name, stack in model.named_modules():
        inside = any(isinstance(model.get_submodule(name[:end]), Attention) for end in _ends(name))
        if isinstance(stack, nn.ModuleList) and not inside and slots_of(stack):
            found += stack
    within = {id(part) for layer in found for part in layer.modules() if part is not layer}
    return [layer for layer in found if id(layer) not in within]


def _ends(name: str) -> list[int]:
    """Where the names of the enclosing modules end in the name of a module."""
    return [place for place, letter in enumerate(name) if letter == "."]


def _by_name(model: nn.Module) -> dict[str, Attention]:
    found: dict[str, Attention] = {}
    for name, module in model.named_modules():
        if isinstance(module, Attention) and not any(name.startswith(f"{slot}.") for slot in found):
            found[name] = module
    return found
