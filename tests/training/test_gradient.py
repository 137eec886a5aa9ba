"""The gradient of a batch in parts follows the rule that the recipe names."""

import contextlib
import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from longspan.core.errors import PluginError
from longspan.runs.fabric import make_fabric
from longspan.tasks.base import Recipe, StepResult
from longspan.training.cuda_graph_step import tensors_in
from longspan.training.gradient import Gradient
from longspan.training.update import PartByPart, Whole
from tests.training.parted import Parted
from tests.training.small import train_small

RECIPE = Recipe(steps=10, batch_size=4, learning_rate=0.1, warmup=0, accumulate=2)


@dataclass(frozen=True)
class Sentences:
    """A part whose mean loss has the gradient `slope`."""

    slope: float
    sentences: int
    steps: int


class Sloped(Parted):
    """Counts sentences, as FastSpeech 2 does, or packed steps, as Transformer-TTS does."""

    def __init__(self, counted):
        self.counted = counted

    def counts(self, batch):
        return {}

    def loss(self, model, batch, *, smoothing=0.0) -> StepResult:
        return StepResult(model.weight.sum() * batch.slope, {}, getattr(batch, self.counted))


def gradient_of(task, recipe, parts):
    """The gradient that two parts leave in a weight."""
    fabric = make_fabric("cpu", "fp32", 1)
    model = fabric.setup(nn.Linear(1, 1, bias=False))
    found = Gradient(task, model, recipe, fabric)
    totals = found.totals(parts)
    results = [found.part(one, totals, last=True, alone=len(parts) == 1) for one in parts]
    found.finish([result.count for result in results], bool(results[0].terms))
    return float(model.weight.grad)


@pytest.mark.parametrize(
    "counted, rule, divisor",
    [("sentences", "sum_over_samples", 4), ("steps", "sum_over_samples", 16), ("sentences", "mean", 2)],
)
def test_two_parts_are_joined_as_the_speech_protocols_say(counted, rule, divisor):
    """Gradients g1 and g2 of 3 + 1 sentences in 10 + 6 packed steps: (g1 + g2) / 4, / 16 and / 2."""
    g1, g2 = 3.0, 5.0
    recipe = dataclasses.replace(RECIPE, parts=rule)
    found = gradient_of(Sloped(counted), recipe, [Sentences(g1, 3, 10), Sentences(g2, 1, 6)])
    assert found == pytest.approx((g1 + g2) / divisor)


@pytest.mark.parametrize("counted, expected", [("sentences", (3 * 3 + 5) / 4), ("steps", (10 * 3 + 6 * 5) / 16)])
def test_parts_by_counts_are_one_batch(counted, expected):
    found = gradient_of(Sloped(counted), RECIPE, [Sentences(3.0, 3, 10), Sentences(5.0, 1, 6)])
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("rule, expected", [("counts", 3.0), ("mean", 3.0), ("sum_over_samples", 1.0)])
def test_a_batch_in_one_part_follows_the_rule_too(rule, expected):
    recipe = dataclasses.replace(RECIPE, parts=rule, accumulate=1)
    assert gradient_of(Sloped("sentences"), recipe, [Sentences(3.0, 3, 10)]) == pytest.approx(expected)


@dataclass(frozen=True)
class Counted:
    """Slopes of two terms of the loss, with the count each is a mean over."""

    slopes: tuple[float, float]
    frames: Any
    phones: Any


class TwoTerms(Parted):
    def counts(self, batch):
        return {"frames": batch.frames, "phones": batch.phones}

    def loss(self, model, batch, *, smoothing=0.0) -> StepResult:
        frames, phones = (model.weight.sum() * slope for slope in batch.slopes)
        terms = {"frames": (frames, batch.frames), "phones": (phones, batch.phones)}
        return StepResult(frames + phones, {}, 1, terms)


@pytest.mark.parametrize("kind", [int, torch.tensor], ids=["on the host", "on the device"])
def test_every_term_of_a_loss_is_weighted_by_its_own_counts(kind):
    parts = [Counted((1.0, 10.0), kind(30), kind(1)), Counted((3.0, 20.0), kind(10), kind(4))]
    expected = (30 * 1 + 10 * 3) / 40 + (1 * 10 + 4 * 20) / 5
    assert gradient_of(TwoTerms(), RECIPE, parts) == pytest.approx(expected)
    mean = dataclasses.replace(RECIPE, parts="mean")
    assert gradient_of(TwoTerms(), mean, parts) == pytest.approx((1 + 10 + 3 + 20) / 2)


def test_a_term_that_no_part_has_anything_of_is_nothing():
    parts = [Counted((1.0, 0.0), 3, 0), Counted((1.0, 0.0), 1, 0)]
    assert gradient_of(TwoTerms(), RECIPE, parts) == pytest.approx(1.0)


def test_terms_without_counts_before_the_forward_pass_are_refused_with_a_sentence():
    class Forgetful(TwoTerms):
        def counts(self, batch):
            return {}

    parts = [Counted((1.0, 10.0), 30, 1), Counted((3.0, 20.0), 10, 4)]
    with pytest.raises(PluginError, match=r"has the terms frames, phones, but \w+\.counts gives nothing"):
        gradient_of(Forgetful(), RECIPE, parts)


@pytest.mark.parametrize("accumulate", [2, 4])
def test_parts_of_a_batch_with_several_counts_give_the_numbers_of_the_whole(tmp_path, accumulate):
    rest = {"task": Parted(), "clip": 0.5, "optimizer": "adam", "eps": 1e-2, "learning_rate": 0.1}
    whole = train_small(tmp_path / "whole", **rest).progress.curve
    parts = train_small(tmp_path / "parts", accumulate=accumulate, **rest).progress.curve
    for one, other in zip(whole, parts, strict=True):
        assert one == pytest.approx(other, rel=1e-4)
    plain = train_small(tmp_path / "plain", accumulate=accumulate, parts="mean", **rest).progress.curve
    assert plain[-1] != pytest.approx(whole[-1], rel=1e-4)  # so that the counts matter


@dataclass(frozen=True)
class Padded:
    x: torch.Tensor


class Squares(Parted):
    """Means over positions, whose number differs between parts."""

    def counts(self, batch):
        return {"places": batch.x.sum()}

    def loss(self, model, batch, *, smoothing=0.0):
        mean = (model(batch.x[..., None]).square().squeeze(-1) * batch.x).sum() / batch.x.sum()
        return StepResult(mean, {"loss": mean.detach()}, len(batch.x), {"places": (mean, batch.x.sum())})


class Rerun:
    """Stands in for graphs: recomputes from the recorded inputs, into tensors made once."""

    def __init__(self):
        self.recorded = 0

    def stage(self):
        return contextlib.nullcontext()

    def record(self, compute):
        self.recorded += 1
        number = torch.zeros(())
        outcome = StepResult(number.clone(), {"loss": number.clone()}, 2, {"places": (number.clone(), number.clone())})

        def replay():
            for kept, found in zip(tensors_in(outcome), tensors_in(compute()), strict=False):
                kept.copy_(found)

        return replay, outcome


@pytest.mark.parametrize("rule", ["counts", "mean", "sum_over_samples"])
def test_parts_of_many_widths_are_recorded_one_by_one_and_are_the_update_they_were(rule):
    """Three widths in every order: a whole update has nine shapes, its parts have three."""
    fabric = make_fabric("cpu", "fp32", 1)
    recipe, widths = dataclasses.replace(RECIPE, parts=rule), list(itertools.product((3, 4, 5), repeat=2))

    def trained(make):
        torch.manual_seed(0)
        model, optimizer = fabric.setup(network := nn.Linear(1, 1), torch.optim.SGD(network.parameters(), lr=0.1))
        update = make(Whole(Gradient(Squares(), model, recipe, fabric), optimizer))
        torch.manual_seed(1)
        batches = [[Padded(torch.rand(2, width)) for width in pair] for pair in widths]
        losses = [[float(result.loss) for result in update(parts)] for parts in batches]
        return torch.tensor(losses), network.state_dict()

    recorder = Rerun()
    plain, plain_weights = trained(lambda update: update)
    losses, weights = trained(lambda update: PartByPart(update, recorder))
    torch.testing.assert_close(losses, plain)
    torch.testing.assert_close(weights, plain_weights)
    assert recorder.recorded == 3 + 1  # a graph for each width, and one for the step
