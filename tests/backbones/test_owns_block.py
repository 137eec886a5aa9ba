"""Where a mechanism owns its block, the network omits the MLP: in encoders, in decoders and when timing."""

import dataclasses

import pytest
import torch

from longspan import tasks
from longspan.attentions import Mechanism, Pattern
from longspan.backbones.parameters import count_shapes
from longspan.backbones.slots import Slots
from longspan.efficiency.workload import TimedBlock
from tests.conformance.declared import OwnsBlock
from tests.conformance.right import Plain

NAMES = ["listops", "lm", "mlm", "summarization", "forecasting_etth1", "point_cloud_completion"]
NAMES += ["tts_fastspeech2", "tts_transformer"]


def parts(name, cls):
    task = tasks.get(name)
    rules = task.protocol("longspan", "smoke")
    slots = Slots(Mechanism(cls, {}, "x"), frozenset(Pattern), task.others(rules))
    return count_shapes(lambda: task.model(slots, rules))["parts"]


@pytest.mark.parametrize("name", NAMES)
def test_a_network_leaves_the_mlp_out_where_the_mechanism_owns_the_block(name):
    own, plain = parts(name, OwnsBlock), parts(name, Plain)
    gone = set(plain) - set(own)
    assert gone
    assert all(any(word in part for word in ("mlp", "widen", "narrow")) for part in gone)
    assert set(own) - set(plain) <= {part for part in own if "attention" in part or "cross" in part}


@pytest.mark.parametrize("name", ["listops", "lm", "mlm"])
def test_a_network_without_mlps_computes_and_learns(name):
    task = tasks.get(name)
    rules = task.protocol("longspan", "smoke")
    rules = dataclasses.replace(rules, model=dataclasses.replace(rules.model, dropout=0.0))
    model = task.model(OwnsBlock, rules)
    y = model(torch.ones(2, 9, dtype=torch.int64))
    y.square().mean().backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "widen" in n)


def test_what_is_timed_as_a_block_has_no_mlp_either():
    assert TimedBlock(OwnsBlock(8, 2, Pattern.NONCAUSAL_SELF)).mlp is None
    assert TimedBlock(Plain(8, 2, Pattern.NONCAUSAL_SELF)).mlp is not None
