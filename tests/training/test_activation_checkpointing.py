"""Layers recomputed in the backward pass train bit-identically, and store less in between."""

import pytest
import torch

from longspan import attentions, tasks
from longspan.backbones.slots import layers_of, slots_of
from longspan.core.seeding import seed_everything
from longspan.runs.fabric import make_fabric
from longspan.training.activation_checkpointing import checkpoint_layers
from longspan.training.loop import train
from tests.conformance.declared import Auxiliary
from tests.training.ranks import KINDS, splits_of
from tests.training.small import RULES

MECHANISMS = {"auxiliary": Auxiliary, "streams": attentions.get("transformer_xl(memory=6, segment=4)")}
NAMES = {"auxiliary": "listops", "batch_norm": "listops", "streams": "lm", "centroids": "lm"}
QUICK = ("auxiliary", "batch_norm", "centroids", "streams")
FULL = ("forecasting_etth1", "summarization", "super_resolution", "tts_fastspeech2")


def trained(case, folder, checkpointed):
    task = tasks.get(NAMES.get(case, case))
    rules = RULES if task.name == "listops" else task.protocol("longspan", "smoke")
    changes = {"recipe.steps": 3, "recipe.checkpoint_activations": checkpointed}
    changes |= {} if task.name == "super_resolution" else {"model.dropout": 0.3}
    rules = rules.override(KINDS.get(case, KINDS["lm"]) | changes)
    seed_everything(0)
    mechanism = "routing_transformer" if case == "centroids" else "softmax"
    model = task.model(MECHANISMS.get(case) or attentions.get(mechanism), rules)
    fabric = make_fabric("cpu", "fp32", 1)
    done = train(task, model, splits_of(task, rules), rules, fabric=fabric, seed=0, folder=folder)
    return model, done


@pytest.mark.parametrize("case", [*QUICK, *(pytest.param(case, marks=pytest.mark.full) for case in FULL)])
def test_training_is_the_same_to_the_last_bit(case, tmp_path):
    (plain, one), (again, two) = (trained(case, tmp_path / str(flag), flag) for flag in (False, True))
    torch.testing.assert_close(again.state_dict(), plain.state_dict(), rtol=0, atol=0)
    assert two.progress.curve == one.progress.curve
    assert two.test.metrics == one.test.metrics


def bytes_kept(compute):
    sizes = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.setdefault(id(x), x.nbytes) and x, lambda x: x):
        compute()
    return sum(sizes.values())


def test_a_layer_keeps_only_what_it_was_given():
    task = tasks.get("listops")
    rules = RULES.override({"model.layers": 3, "model.dim": 16})
    kept = []
    for checkpointed in (False, True):
        model = task.model(attentions.get("softmax"), rules)
        if checkpointed:
            checkpoint_layers(model)
        batch = task.feed(task.made_up(rules, 4), rules, "cpu").batch(torch.arange(4).numpy())
        kept.append(bytes_kept(lambda model=model, batch=batch: task.loss(model, batch)))
    assert kept[1] < kept[0] / 2


@pytest.mark.parametrize(
    "name", ["listops", "lm", "summarization", "tts_fastspeech2", "point_cloud_completion", "super_resolution"]
)
def test_every_slot_of_a_network_lies_in_one_of_its_layers(name):
    task = tasks.get(name)
    model = task.model(attentions.get("softmax"), task.protocol("longspan", "smoke"))
    found = [slot for layer in layers_of(model) for slot in slots_of(layer)]
    assert sorted(map(id, found)) == sorted(map(id, slots_of(model)))
