"""A mechanism's carry goes from layer to layer of an encoder, however its rows are computed."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from longspan import attentions, tasks
from longspan.attentions import Pattern
from longspan.attentions.luna import Luna
from longspan.backbones.encoder_classifier import EncoderClassifier
from longspan.backbones.slots import slots_of


def tokens(n, rows=2):
    return torch.randint(20, (rows, n), generator=torch.Generator().manual_seed(n))


def encoder(pooling, spec="luna(slots=3)"):
    rules = tasks.get("listops").protocol("longspan", "smoke")
    sizes = replace(rules.model, dim=16, heads=2, layers=3, mlp=16, dropout=0.0, attention_dropout=0.0, pooling=pooling)
    torch.manual_seed(0)
    return EncoderClassifier(attentions.get(spec), sizes, vocabulary=20, classes=4, length=12).double().eval()


def test_an_encoder_passes_the_packed_sequence_from_layer_to_layer():
    model = encoder("mean")
    x, carry = model._embed(tokens(9)) + model.positions[:9], None
    for block in model.blocks:
        y, carry = block.attention.carried(block.attention_norm(x), carry=carry)
        x = x + y
        x = x + block.mlp(block.mlp_norm(x))
    torch.testing.assert_close(model.encode(tokens(9)), model.norm(x).mean(dim=1))
    model(tokens(9)).sum().backward()
    assert model.blocks[0].attention.p.grad.any()
    assert model.blocks[1].attention.p.grad is None  # replaced by what the first layer packed


@pytest.mark.parametrize("pooling", ["mean", "cls", "first"])
def test_packed_rows_carry_what_each_row_carries_alone(pooling):
    model, rows = encoder(pooling), tokens(9, rows=3)
    lengths = [9, 4, 6]
    together = model.encode(rows, lengths)
    for i, length in enumerate(lengths):
        torch.testing.assert_close(together[i], model.encode(rows[i : i + 1, :length])[0])


@pytest.mark.parametrize("pooling", ["cls", "first"])
def test_the_last_block_reads_what_was_carried_where_only_its_first_row_is_computed(pooling):
    model = encoder(pooling)
    early = model.encode(tokens(9), [9, 5])
    model.whole = True
    torch.testing.assert_close(model.encode(tokens(9), [9, 5]), early)


DEEP = {"model.encoder_layers": 2, "model.decoder_layers": 2}
STACKS = {  # number of stacks of noncausal self slots in a network, and settings that give each several layers
    "listops": (1, {}),
    "mlm": (1, {}),
    "summarization": (1, {"model.layers": 2}),
    "forecasting_etth1": (1, {}),
    "point_cloud_completion": (2, DEEP | {"model.decoder_self": "trial"}),
    "tts_transformer": (1, {"model.layers": 2}),
    "tts_fastspeech2": (2, DEEP),
}


@pytest.mark.parametrize("name", STACKS)
def test_every_stack_begins_with_nothing_and_passes_on_what_it_carries(name, monkeypatch):
    given, carried = [], Luna.carried

    def watched(self, *inputs, carry=None, **masks):
        y, after = carried(self, *inputs, carry=carry, **masks)
        given.append((carry, after))
        return y, after

    monkeypatch.setattr(Luna, "carried", watched)
    task = tasks.get(name)
    stacks, settings = STACKS[name]
    rules = task.protocol("longspan", "smoke").override(settings)
    torch.manual_seed(0)
    model = task.model(attentions.get("luna(slots=3)"), rules)
    slots = [slot for slot in slots_of(model) if slot.pattern is Pattern.NONCAUSAL_SELF]
    task.loss(model, task.feed(task.made_up(rules, 2), rules, "cpu").batch(np.arange(2)))
    assert len(given) == len(slots)
    assert sum(carry is None for carry, _ in given) == stacks < len(slots)
    for (_, before), (carry, _) in pairwise(given):
        assert carry is None or carry is before
