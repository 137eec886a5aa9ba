"""The stage before a task: it trains the network on masked tokens, and interrupting either stage changes nothing."""

import dataclasses

import numpy as np
import pytest
import torch

from longspan import attentions, tasks
from longspan.backbones.masked_encoder import MaskedEncoder
from longspan.core.errors import UsageError
from longspan.core.seeding import seed_everything
from longspan.runs import Cell, run
from longspan.runs.fabric import make_fabric
from longspan.tasks.base import Recipe
from longspan.training import loop
from longspan.training.pretraining import PRETRAINING, recipe_of
from tests.training.small import RULES, TASK, small_splits, train_small
from tests.training.test_loop import Killed, assert_same, kill_at

STAGE = {"pretraining_steps": 6, "pretraining_rate": 0.02, "masked": 0.5}


def network(mechanism="softmax", **sizes):
    seed_everything(0)
    rules = dataclasses.replace(RULES, model=dataclasses.replace(RULES.model, **sizes))
    return rules, TASK.model(attentions.get(mechanism), rules)


def test_the_stage_moves_all_of_the_network_but_its_head(tmp_path):
    rules, model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fabric = make_fabric("cpu", "fp32", 1)
    recipe = dataclasses.replace(rules.recipe, **STAGE, learning_rate=1e-30)  # the task itself changes no weights
    rules = dataclasses.replace(rules, recipe=recipe)
    loop.train(TASK, model, small_splits(), rules, fabric=fabric, seed=0, folder=tmp_path)
    for name, value in model.state_dict().items():
        assert torch.allclose(before[name], value, atol=1e-12) == name.startswith("head."), name
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not model.whole


@pytest.mark.parametrize("mechanism", ["softmax", "s4d", "linear"])
def test_any_mechanism_learns_to_predict_what_is_hidden(mechanism):
    rules, model = network(mechanism, pooling="mean")
    stage = TASK.pretraining(rules)
    masked, feed = stage.around(model), stage.feed(small_splits().train, rules, "cpu")
    optimizer = torch.optim.Adam(masked.parameters(), 0.02)
    losses = []
    for _ in range(30):
        torch.manual_seed(0)
        result = stage.loss(masked, feed.batch(np.arange(10)))
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
        losses.append(result.loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_hidden_token_has_no_influence_and_padding_is_never_asked_for(pooling):
    _, model = network(pooling=pooling)
    model.whole = True
    masked = MaskedEncoder(model).eval()
    tokens, lengths = torch.randint(1, 16, (3, 10), dtype=torch.int32), [10, 4, 7]
    covered = torch.rand(3, 10) < 0.5
    logits, known, asked = masked(tokens, lengths, covered)
    assert int(asked.sum()) == sum(int(row[:n].sum()) for row, n in zip(covered, lengths, strict=True))
    assert known[asked].tolist() == [
        int(t) for row, hidden, n in zip(tokens, covered, lengths, strict=True) for t in row[:n][hidden[:n]]
    ]
    others = torch.where(covered, 16 - tokens, tokens)
    torch.testing.assert_close(masked(others, lengths, covered)[0], logits)


def test_pixels_that_are_numbers_are_predicted_as_intensities():
    task = tasks.get("image")
    rules = task.protocol("longspan", "smoke").override({"model.input_mode": "continuous"})
    masked = task.pretraining(rules).around(task.model(attentions.get("linear"), rules))
    tokens = torch.randint(0, 256, (2, 1_024), dtype=torch.int32)
    logits, known, _ = masked(tokens, None, torch.rand(2, 1_024) < 0.5)
    assert logits.shape == (2, 1_024, 256)
    assert torch.equal(known, tokens.long())


@pytest.mark.parametrize("stage", [True, False], ids=["in the stage", "in the task"])
def test_a_run_cut_in_either_stage_ends_with_the_numbers_of_a_whole_one(stage, tmp_path, monkeypatch):
    whole = train_small(tmp_path / "whole", **STAGE)
    train = loop.train
    if stage:  # the loop of the stage is killed once, after its fourth step
        monkeypatch.setattr(loop, "train", lambda *a, **k: train(*a, **k, watch=kill_at(4), save_every_seconds=-1))
        with pytest.raises(Killed):
            train_small(tmp_path / "cut", **STAGE)
        monkeypatch.undo()
    else:
        with pytest.raises(Killed):
            train_small(tmp_path / "cut", **STAGE, watch=kill_at(7), save_every_seconds=-1)
    assert list((tmp_path / "cut" / PRETRAINING).glob("checkpoint-*.pt"))
    resumed = train_small(tmp_path / "cut", **STAGE)
    assert_same(whole, resumed)


def test_the_stage_has_its_own_length_and_rate_and_the_rest_of_the_recipe():
    recipe = Recipe(steps=50, batch_size=4, learning_rate=0.1, warmup=7, patience=3, **STAGE)
    stage = recipe_of(recipe)
    assert (stage.steps, stage.learning_rate, stage.warmup, stage.pretraining_steps) == (6, 0.02, 7, 0)
    assert (stage.selection, stage.patience, stage.batch_size) == ("last", None, 4)


def test_a_task_without_the_stage_says_so():
    task = tasks.get("lm")
    with pytest.raises(UsageError, match="has no stage of pretraining"):
        task.pretraining(task.protocol("longspan", "smoke"))


@pytest.mark.parametrize("changes", [{"pretraining_steps": -1}, {"masked": 0.0}, {"pretraining_rate": 0.0}])
def test_a_stage_that_cannot_be_is_refused(changes):
    with pytest.raises(UsageError):
        dataclasses.replace(RULES.recipe, **changes)


def test_a_pretrained_run_says_so_on_its_card_and_leaves_nothing_behind(tmp_path):
    few = {"data.train": 20, "data.valid": 6, "data.test": 6, "recipe.steps": 2, "recipe.evaluate_every": 2}
    few |= {"recipe.pretraining_steps": 2, "recipe.batch_size": 4}
    cell = Cell("listops", "s4d", None, "longspan", "smoke", 0, few)
    card = run(cell, out=tmp_path, data=tmp_path / "data", device="cpu", weights=False, progress=False)
    assert not card["rules"]["no pretraining"]["kept"]
    assert "2 steps on masked tokens" in card["rules"]["no pretraining"]["finding"]
    assert not list((tmp_path / "runs").rglob("checkpoint-*.pt"))
