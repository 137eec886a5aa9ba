"""An auxiliary loss is minimised with the loss of its part, however a batch is divided, and never in evaluation."""

import dataclasses

import pytest
import torch

from longspan.attentions.auxiliary import auxiliary_loss, collecting
from longspan.runs.fabric import make_fabric
from longspan.tasks.base import StepResult
from longspan.training.gradient import Gradient
from tests.conformance.declared import Auxiliary
from tests.training.small import RULES, TASK, small_splits, train_small

ROWS = torch.arange(8)


def network():
    torch.manual_seed(0)
    return TASK.model(Auxiliary, dataclasses.replace(RULES, model=dataclasses.replace(RULES.model, dropout=0.0)))


def gradients(task, rule, parts):
    """The gradient of 8 rows in equal parts, by name."""
    fabric = make_fabric("cpu", "fp32", 1)
    model = fabric.setup(network())
    feed = task.feed(small_splits().train, RULES, "cpu")
    batches = [feed.batch(rows.numpy()) for rows in ROWS.chunk(parts)]
    recipe = dataclasses.replace(RULES.recipe, parts=rule, batch_size=8, accumulate=parts)
    found = Gradient(task, model, recipe, fabric)
    totals = found.totals(batches)
    results = [found.part(one, totals, last=True, alone=parts == 1) for one in batches]
    found.finish([result.count for result in results], bool(results[0].terms))
    return {name.rpartition("module.")[2]: p.grad for name, p in model.named_parameters()}, results


@pytest.mark.parametrize("rule", ["counts", "mean"])
def test_parts_of_a_batch_have_the_auxiliary_gradient_of_the_whole(rule):
    whole, _ = gradients(TASK, rule, 1)
    parted, _ = gradients(TASK, rule, 4)
    for name, expected in whole.items():
        if name.endswith("extra"):
            assert expected.abs().max() > 0
            torch.testing.assert_close(parted[name], expected, msg=name)


def test_a_loss_with_terms_of_its_own_has_one_more():
    """Its parts need their total count beforehand, which `totals` provides."""

    class Terms(type(TASK)):
        def counts(self, batch):
            return {"rows": 2}

        def loss(self, model, batch, *, smoothing=0.0):
            plain = super().loss(model, batch, smoothing=smoothing)
            return StepResult(plain.loss, plain.sums, plain.count, {"rows": (plain.loss, 2)})

    whole, _ = gradients(TASK, "counts", 1)
    parted, results = gradients(Terms(), "counts", 4)
    assert set(results[0].terms) == {"rows", "auxiliary_loss"}
    torch.testing.assert_close(parted["blocks.0.attention.extra"], whole["blocks.0.attention.extra"])


def test_the_learning_curve_shows_it_and_weights_descend_it(tmp_path):
    done = train_small(tmp_path, network=(model := network()))
    assert all(point["train_auxiliary_loss"] > 0 for point in done.progress.curve)
    assert not any("auxiliary" in name for point in done.progress.curve for name in point if name.startswith("valid"))
    assert not torch.equal(model.blocks[0].attention.extra, torch.ones_like(model.blocks[0].attention.extra))


def test_nothing_is_kept_where_nobody_collects():
    model = network().train()
    model(torch.ones(2, 5, dtype=torch.int64))
    assert model.blocks[0].attention.auxiliary_terms is None
    with collecting(model) as layers:
        model.eval()(torch.ones(2, 5, dtype=torch.int64))
        assert auxiliary_loss(layers) == 0.0
