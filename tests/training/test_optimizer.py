"""Learning rates computed by hand, and parameters with their own optimiser settings."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from longspan import attentions, tasks
from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from longspan.tasks.base import Recipe
from longspan.training.optimizer import learning_rate, make_optimizer, set_learning_rate

LISTOPS = tasks.get("listops").protocol("lra-paper", "full").recipe
PATHFINDER = tasks.get("pathfinder").protocol("lra-released", "full").recipe
LINEAR = Recipe(steps=110, batch_size=1, learning_rate=2.0, warmup=10, schedule="linear")
CONSTANT = Recipe(steps=110, batch_size=1, learning_rate=2.0, warmup=10, schedule="constant")
SQUARE = replace(LINEAR, schedule="polynomial", power=2.0)
INVERSE = replace(LINEAR, schedule="inverse_sqrt", initial_rate=0.5)
STAIRS = replace(LINEAR, schedule="exponential", warmup=0, decay_rate=0.5, decay_every=20)


@pytest.mark.parametrize(
    "recipe, step, expected",
    [
        (LISTOPS, 0, 0.0),  # the first update moves nothing
        (LISTOPS, 500, 0.5 * 0.05 / math.sqrt(1_000)),
        (LISTOPS, 1_000, 1.5811388e-3),  # the peak, base / sqrt(warm-up)
        (LISTOPS, 4_000, 0.05 / math.sqrt(4_000)),
        (PATHFINDER, 0, 0.0),
        (PATHFINDER, 156, 0.5e-3),
        (PATHFINDER, 312, 1e-3),
        (PATHFINDER, 312 + 31_200, 0.5e-3),  # half a period after the warm-up
        (PATHFINDER, 62_400, 0.5e-3 * (1 + math.cos(math.pi * 0.995))),  # the period is all steps, so it ends early
        (LINEAR, 5, 1.0),
        (LINEAR, 10, 2.0),
        (LINEAR, 60, 1.0),
        (LINEAR, 109, 0.02),
        (CONSTANT, 5, 1.0),
        (CONSTANT, 109, 2.0),
        (replace(LINEAR, schedule="polynomial"), 60, 1.0),  # of power 1: the straight line to 0
        (SQUARE, 5, 1.0),
        (SQUARE, 60, 0.5),
        (INVERSE, 0, 0.5),  # the warm-up begins here
        (INVERSE, 5, 1.25),
        (INVERSE, 10, 2.0),  # the peak is the learning rate itself
        (INVERSE, 40, 1.0),
        (INVERSE, 90, 2.0 / 3),
        (replace(INVERSE, warmup=0), 0, 2.0),
        (STAIRS, 0, 2.0),
        (STAIRS, 19, 2.0),
        (STAIRS, 20, 1.0),
        (STAIRS, 109, 0.0625),
        (replace(STAIRS, decay_after=1), 39, 2.0),
        (replace(STAIRS, decay_after=1), 40, 1.0),
    ],
)
def test_rates_are_those_computed_by_hand(recipe, step, expected):
    assert learning_rate(recipe, step) == pytest.approx(expected, rel=1e-6, abs=1e-15)


SPEECH = replace(LINEAR, schedule="inverse_sqrt", steps=200_000, learning_rate=5e-4, warmup=4_000, initial_rate=0.0)
CLOUDS = replace(STAIRS, steps=301 * 603, learning_rate=5e-4, decay_rate=0.9 ** (1 / 21), decay_every=603)


@pytest.mark.parametrize(
    "update, expected", [(1, 0.0), (2, 1.25e-7), (4_001, 5e-4), (20_000, 2.236124e-4), (200_000, 7.071085e-5)]
)
def test_speech_is_trained_at_the_rates_of_its_protocol(update, expected):
    """5e-4 min((u - 1) / 4000, sqrt(4000 / (u - 1))), updates counted from 1."""
    assert learning_rate(SPEECH, update - 1) == pytest.approx(expected, rel=1e-6, abs=1e-15)


@pytest.mark.parametrize(
    "epoch, expected", [(0, 5e-4), (1, 4.974977e-4), (21, 4.5e-4), (299, 5e-4 * 0.9 ** (299 / 21)), (300, 1.109920e-4)]
)
def test_point_clouds_are_trained_at_the_rates_of_their_protocol(epoch, expected):
    """5e-4 * 0.9^(epoch / 21) in epochs of 603 steps; the floor of 0.02 lies beyond the last one."""
    for step in (603 * epoch, 603 * epoch + 602):
        assert learning_rate(CLOUDS, step) == pytest.approx(expected, rel=1e-6)
    assert CLOUDS.decay_rate**300 > 0.02


recipes = st.builds(
    Recipe,
    steps=st.integers(1, 500),
    batch_size=st.just(1),
    learning_rate=st.floats(1e-5, 10),
    warmup=st.integers(0, 500),
    schedule=st.sampled_from(["rsqrt", "cosine", "linear", "constant", "inverse_sqrt", "polynomial"]),
    power=st.floats(0.5, 3),
)


@given(recipes)
def test_rates_rise_to_one_peak_and_never_again(recipe):
    rates = [learning_rate(recipe, step) for step in range(recipe.steps)]
    assert all(0 <= rate <= recipe.learning_rate * (1 + 1e-12) for rate in rates)
    rising = rates[: recipe.warmup + 1]
    assert rising == sorted(rising) or recipe.warmup == 0
    falling = rates[recipe.warmup :]
    assert all(one >= other * (1 - 1e-9) for one, other in itertools.pairwise(falling))


def test_without_tags_all_parameters_are_one_group_with_the_recipes_settings():
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    (group,) = make_optimizer(model, LISTOPS).param_groups
    assert len(group["params"]) == 4  # biases and norms decay like all the rest
    assert (group["weight_decay"], group["betas"], group["eps"]) == (0.1, (0.9, 0.98), 1e-9)


def test_a_state_space_is_trained_gently():
    model = attentions.get("s4d")(8, 2, Pattern.NONCAUSAL_SELF)
    optimizer = make_optimizer(model, LISTOPS)
    gentle = {id(p) for p in (model.log_decay, model.frequency, model.log_step)}
    for rate, expected in [(5e-4, 5e-4), (1.0, 1e-3)]:
        set_learning_rate(optimizer, rate)
        for group in optimizer.param_groups:
            tagged = {id(p) for p in group["params"]} <= gentle
            assert group["weight_decay"] == (0.0 if tagged else 0.1)
            assert group["lr"] == (expected if tagged else rate)
    grouped = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())


def test_frozen_parameters_are_left_out():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    assert [p is model.weight for g in make_optimizer(model, LISTOPS).param_groups for p in g["params"]] == [True]


def test_decay_is_decoupled_and_scaled_by_the_rate():
    model = nn.Linear(1, 1, bias=False)
    before = model.weight.item()
    optimizer = make_optimizer(model, LISTOPS)
    set_learning_rate(optimizer, 0.01)
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    assert model.weight.item() == pytest.approx(before - 0.01 * 0.1 * before - 0.01, rel=1e-5)


def test_adam_adds_its_decay_to_the_gradient():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    optimizer = make_optimizer(model, replace(LISTOPS, optimizer="adam", weight_decay=1.0, betas=(0.0, 0.0)))
    set_learning_rate(optimizer, 0.01)
    model.weight.grad = torch.full_like(model.weight, -2.0)
    optimizer.step()
    assert model.weight.item() == pytest.approx(2.0)  # the gradient and the decay of 1 * 2 cancel out


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"accumulate": 3}, "batch of 32 cannot be gone through in 3 equal parts"),
        ({"accumulate": 0}, "accumulate of at least 1"),
        ({"label_smoothing": 1.0}, "label_smoothing is a share"),
        ({"schedule": "exponential"}, "decay_every of at least 1"),
        ({"decay_after": -1}, "decay_after counts stairs from 0"),
        ({"patience": 0}, "patience counts evaluations from 1"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_with_a_sentence(change, sentence):
    with pytest.raises(UsageError, match=sentence):
        replace(LISTOPS, **change)


# ------------------------------------------------------------------------------------------------------ own base rates

S4 = Recipe(steps=1_000, batch_size=1, learning_rate=0.01, warmup=100, schedule="cosine_to_zero", weight_decay=0.05)


@pytest.mark.parametrize(
    "step, expected", [(0, 0.0), (50, 0.005), (100, 0.01), (550, 0.005), (1_000, 0.0), (325, 0.01 * 0.8535534)]
)
def test_cosine_to_zero_ends_at_zero_whatever_the_warm_up(step, expected):
    assert learning_rate(S4, step) == pytest.approx(expected, abs=1e-9)


def test_a_warm_up_may_rise_by_a_power():
    assert learning_rate(replace(S4, warmup_power=2.0), 50) == pytest.approx(0.0025)


def rates(recipe, step, model=None):
    """The rate of every parameter of a state space at a step, by name."""
    model = attentions.get("s4d")(8, 1, Pattern.NONCAUSAL_SELF) if model is None else model
    optimizer = make_optimizer(model, recipe)
    set_learning_rate(optimizer, learning_rate(recipe, step))
    by_id = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    return {name: by_id[id(p)] for name, p in model.named_parameters()}


def test_the_dynamics_are_capped_unless_a_recipe_has_a_rate_for_them():
    assert rates(S4, 100)["log_decay"] == rates(S4, 550)["log_decay"] == 1e-3  # constant at the cap
    own = replace(S4, ssm_learning_rate=1e-3)
    assert rates(own, 100)["log_decay"] == pytest.approx(1e-3)
    assert rates(own, 550)["log_decay"] == pytest.approx(0.5e-3)  # follows the schedule
    assert rates(own, 550)["log_step"] == pytest.approx(0.5e-3)
    assert rates(own, 550)["c"] == pytest.approx(0.005)


def test_steps_may_have_the_base_rate():
    own = rates(replace(S4, ssm_learning_rate=1e-3, dt_learning_rate=0.01), 550)
    assert (own["log_step"], own["frequency"]) == (pytest.approx(0.005), pytest.approx(0.5e-3))
    with pytest.raises(UsageError, match="ssm_learning_rate as well"):
        replace(S4, dt_learning_rate=0.01)


def test_a_plug_in_may_ask_for_a_ratio():
    model = nn.Linear(2, 2)
    model.bias.optim = {"ratio": 0.1}
    assert rates(S4, 100, model) == {"weight": pytest.approx(0.01), "bias": pytest.approx(0.001)}


def test_decay_of_weights_spares_biases_norms_embeddings_and_positions():
    task = tasks.get("image")
    sizes = {"model.layers": 1, "model.projection_bias": True, "model.norm": "batch"}
    model = task.model(attentions.get("s4d"), task.protocol("longspan", "full").override(sizes))
    spared = {True: [], False: []}
    for decay in ("all", "weights"):
        optimizer = make_optimizer(model, replace(S4, decay=decay))
        by_id = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
        if decay == "all":
            assert {by_id[id(p)] for p in model.parameters() if not hasattr(p, "optim")} == {0.05}
            continue
        for name, p in model.named_parameters():
            spared[by_id[id(p)] == 0].append(name)
    assert {"cls", "embedding.weight", "positions", "norm.weight", "head.0.bias"} <= set(spared[True])
    assert {"blocks.0.attention.log_step", "blocks.0.attention.out.bias"} <= set(spared[True])
    assert set(spared[False]) == {
        *("blocks.0.attention.c", "blocks.0.attention.skip", "blocks.0.attention.out.weight"),
        *("blocks.0.mlp.0.weight", "blocks.0.mlp.3.weight", "head.0.weight", "head.2.weight"),
    }
