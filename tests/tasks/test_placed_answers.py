"""Diagnostic tasks: the network is scored at the query positions, kind by kind, and its card can be verified."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from longspan import attentions, datasets, tasks
from longspan.attentions import Pattern
from longspan.backbones.slots import Slots
from longspan.datasets import recall
from longspan.datasets.base import Split
from longspan.results.verify import verify
from longspan.runs import Cell, run

DIAGNOSTIC = ["copying", "needle", "noncausal_recall", "recall", "selective_copying"]
PATTERN = {"noncausal_recall": "noncausal_self"}
FEW = {"data.train": 40, "data.valid": 10, "data.test": 20, "recipe.steps": 2, "recipe.batch_size": 8}


class Oracle(nn.Module):
    """Gives the answers it was built with."""

    def __init__(self, batches, vocabulary):
        super().__init__()
        self.batches, self.vocabulary = iter(batches), vocabulary

    def forward(self, tokens, at, mask):
        answers = next(self.batches).clamp(min=0)
        return nn.functional.one_hot(answers, self.vocabulary).float() * 50


def test_the_score_is_the_mean_over_kinds_of_the_mean_over_rows(tmp_path):
    task = tasks.get("recall")
    data = recall.Data(train=8, valid=4, test=6, vocabulary=64, trained=((16, 2, 1),), tested=((16, 2), (32, 4)))
    rules = task.protocol("longspan", "smoke").override({})
    rules = type(rules)(data, rules.model, rules.recipe)
    feed = task.feed(task.splits(rules, tmp_path).test, rules, "cpu")
    answers = [batch.answers.clone() for _, batch in feed.in_batches(np.arange(6), 3)]
    answers[0][0, 0] = 1  # one of two, in the first of three rows of 16 tokens
    found = task.evaluate(Oracle(answers, 64), feed, np.arange(6), 3)
    summary = task.summary(found.predictions)
    assert summary["accuracy_16_2"] == pytest.approx(5 / 6)
    assert summary["accuracy_32_4"] == 1
    assert summary["accuracy"] == pytest.approx(11 / 12)


def test_a_needle_counts_only_if_all_its_digits_are_right(tmp_path):
    task = tasks.get("needle")
    changes = {"data.train": 4, "data.valid": 2, "data.test": 6, "data.digits": 2}
    rules = task.protocol("longspan", "smoke").override(changes)
    feed = task.feed(task.splits(rules, tmp_path).test, rules, "cpu")
    answers = [feed.batch(np.arange(6)).answers.clone()]
    answers[0][0, 0] = 1
    found = task.evaluate(Oracle(answers, 128), feed, np.arange(6), 6)
    assert found.predictions["accuracy"].tolist() == [0, 1, 1, 1, 1, 1]
    assert task.chance(task.splits(rules, tmp_path).test) == pytest.approx(0.01)


@torch.no_grad()
def test_rows_of_several_lengths_in_a_batch_give_what_they_give_alone():
    task = tasks.get("recall")
    data = recall.Data(train=4, valid=2, test=2, vocabulary=64, trained=((16, 2, 1), (24, 3, 1)), tested=((16, 2),))
    rules = task.protocol("longspan", "smoke")
    rules = type(rules)(data, rules.model, rules.recipe)
    shard = datasets.get("recall").make_shard(data, 0)
    edges = np.concatenate([[0], np.cumsum(shard.lengths)])
    split = Split.of_rows(shard.tokens, edges, shard.labels)
    feed = task.feed(split, rules, "cpu")
    slots = Slots(attentions.get("softmax"), frozenset([Pattern.CAUSAL_SELF]), {})
    model = task.model(slots, rules).eval()
    together = task.evaluate(model, feed, np.arange(8), 8)
    alone = [task.evaluate(model, feed, np.array([row]), 1).metrics["loss"] for row in range(8)]
    assert together.metrics["loss"] == pytest.approx(np.mean(alone), rel=1e-5)
    both = feed.batch(np.array([0, 3]))
    assert both.tokens.shape == (2, 24)
    assert both.real.sum(dim=1).tolist() == [16, 24]
    assert (both.answers >= 0).sum(dim=1).tolist() == [2, 3]


@pytest.mark.parametrize("name", DIAGNOSTIC)
def test_a_card_of_every_diagnostic_is_verified_from_its_predictions(name, tmp_path):
    cell = Cell(name, "linear", None, "longspan", "smoke", 0, FEW)
    card = run(cell, out=tmp_path, data=tmp_path / "data", device="cpu", weights=False, progress=False)
    assert (card["status"], card["pattern"], card["score"]["count"]) == ("ok", PATTERN.get(name, "causal_self"), 20)
    (path,) = (tmp_path / "cards").rglob("*.json")
    assert not [finding for finding in verify(path) if finding.status == "broken"]


def test_chance_is_any_value_of_the_row(tmp_path):
    task = tasks.get("recall")
    rules = task.protocol("longspan", "smoke").override({"data.train": 5, "data.valid": 5, "data.test": 5})
    assert task.chance(task.splits(rules, tmp_path).test) == pytest.approx(1 / 4)


def test_logits_at_some_places_are_those_of_the_whole_row():
    task = tasks.get("copying")
    rules = task.protocol("longspan", "smoke")
    model = task.model(Slots(attentions.get("softmax"), frozenset([Pattern.CAUSAL_SELF]), {}), rules).eval()
    tokens, at = torch.randint(1, 20, (2, 9)), torch.tensor([[0, 3], [8, 1]])
    whole = model(tokens)
    torch.testing.assert_close(model(tokens, at=at), torch.stack([whole[0, [0, 3]], whole[1, [8, 1]]]))


@pytest.mark.parametrize("name, sees", [("recall", False), ("noncausal_recall", True)])
def test_only_an_encoder_sees_what_comes_later(name, sees, tmp_path):
    task = tasks.get(name)
    rules = task.protocol("longspan", "smoke").override({"data.train": 8, "data.valid": 4, "data.test": 4})
    feed = task.feed(task.splits(rules, tmp_path).test, rules, "cpu")
    batch = feed.batch(np.arange(4))
    pattern = frozenset(task.meta.slots.values())
    torch.manual_seed(0)
    model = task.model(Slots(attentions.get("softmax"), pattern, {}), rules).eval()
    later = replace(batch, tokens=torch.cat([batch.tokens[:, :-1], 1 + batch.tokens[:, -1:] % 8], dim=1))
    early = batch.places < batch.tokens.shape[1] - 1
    with torch.no_grad():
        changed = (task.answers(model, batch) - task.answers(model, later)).abs().amax(dim=-1)[early]
    assert bool((changed > 1e-6).any()) is sees


@pytest.mark.full
def test_softmax_learns_to_recall_and_a_window_does_not(tmp_path):
    scores = {}
    for mechanism in ("softmax", "local(window=8)"):
        cell = Cell("recall", mechanism, None, "longspan", "smoke", 0, {})
        card = run(cell, out=tmp_path, data=tmp_path / "data", device="cpu", weights=False, progress=False)
        scores[mechanism] = card["score"]["value"]
    assert scores["softmax"] - scores["local(window=8)"] > 0.3
    assert math.isclose(scores["softmax"], 1.0, abs_tol=0.1)
