"""Replacing one pattern leaves the slots of all other patterns unchanged, in a small network with three patterns."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from longspan import attentions
from longspan.attentions import Attention, Pattern
from longspan.backbones.slots import Slots, filled
from tests.backbones.toy import SLOTS, Toy

NS, CS, NC, CC = Pattern
PATTERNS = st.sets(st.sampled_from([NS, CS, CC]))
MECHANISM = attentions.get("abc(slots=3)")


def types_by_pattern(model):
    """The mechanisms in the slots of each pattern."""
    found = {}
    for text in filled(model).values():
        name, _, pattern = text.partition(" ")
        found.setdefault(Pattern(pattern.strip("()")), set()).add(name)
    return found


@given(PATTERNS)
def test_exactly_the_slots_of_the_patterns_on_trial_are_replaced(replaced):
    torch.manual_seed(0)
    model = Toy(Slots(MECHANISM, frozenset(replaced)))
    found = types_by_pattern(model)
    assert found == {p: {"ABC" if p in replaced else "Softmax"} for p in (NS, CS, CC)}
    assert list(filled(model)) == [name for name, _ in SLOTS]


@given(PATTERNS)
def test_parameters_of_the_other_slots_are_untouched_in_name_and_shape(replaced):
    def shapes(model):
        slots = dict(SLOTS)
        return {
            name: tuple(parameter.shape)
            for name, parameter in model.named_parameters()
            if slots.get(name.rpartition(".attention")[0] + ".attention") not in replaced
        }

    with torch.device("meta"):
        softmax, mixed = Toy(Slots(attentions.get("softmax"), frozenset())), Toy(Slots(MECHANISM, frozenset(replaced)))
    assert shapes(mixed) == {n: s for n, s in shapes(softmax).items() if n in shapes(mixed)} == shapes(softmax)


@pytest.mark.parametrize("replaced", [(NS,), (CS,), (CC,)])
def test_the_others_are_what_the_protocol_says(replaced):
    others = {NS: "probsparse(factor=2)", CS: "linear"}
    found = types_by_pattern(Toy(Slots(MECHANISM, frozenset(replaced), others)))
    own = {NS: "ProbSparse", CS: "LinearAttention", CC: "Softmax"}
    assert found == {p: {"ABC" if p in replaced else name} for p, name in own.items()}


def test_every_slot_gets_its_own_pattern_and_its_own_weights():
    model = Toy(Slots(MECHANISM, frozenset({NS, CS, CC})))
    slots = [module for module in model.modules() if isinstance(module, Attention)]
    assert [slot.pattern for slot in slots] == [pattern for _, pattern in SLOTS]
    assert len({id(p) for slot in slots for p in slot.parameters()}) == sum(len(list(s.parameters())) for s in slots)


def test_an_attention_inside_an_attention_is_no_slot_of_the_network():
    class Wrapped(type(MECHANISM(8, 2, NS))):
        def __init__(self, *args, **shell):
            super().__init__(*args, **shell)
            self.inside = attentions.get("softmax")(8, 2, NS)

    model = nn.ModuleDict({"one": Wrapped(8, 2, NS), "onemore": attentions.get("linear")(8, 2, NS)})
    assert filled(model) == {
        "one": "Wrapped (noncausal_self)",
        "onemore": "LinearAttention (noncausal_self)",
    }
