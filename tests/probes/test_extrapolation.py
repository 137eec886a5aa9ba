"""Perplexity by length: the same tokens at every length, no context before a block, a reason where weights end."""

import functools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from longspan import attentions, tasks
from longspan.backbones.slots import Slots
from longspan.core.errors import UsageError
from longspan.probes import extrapolation
from longspan.probes.base import TrainedModel

TINY = {"data.length": 32, "data.vocabulary": 300, "data.train": 2, "data.valid": 1, "data.test": 1}
TINY |= {"model.dim": 8, "model.layers": 1, "model.mlp": 8}


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A freshly initialised language model on made-up books."""
    root = tmp_path_factory.mktemp("data")

    @functools.cache
    def trained(mechanism, task="lm", length=32):
        task = tasks.get(task)
        protocol = task.protocol("longspan", "smoke").override(TINY | {"data.length": length})
        chosen = attentions.get(mechanism)
        torch.manual_seed(0)
        patterns = task.patterns(None)
        model = task.model(Slots(chosen, frozenset(patterns)), protocol).eval()
        splits = task.splits(protocol, root)
        run = {"pattern": patterns[0].value, "dataset": {"variant": splits.variant, "sha256": splits.sha256}}
        return TrainedModel(task, chosen, protocol, model, run, root)

    return trained


def test_lengths_are_those_of_the_figure_scaled_to_training(asked):
    answer = extrapolation.ask(asked("softmax"))
    assert [point["length"] for point in answer.results["points"]] == [1, 2, 4, 8, 16, 32, 48, 64]
    assert answer.results["trained_length"] == 32
    assert answer.results["tokens"] % math.lcm(48, 64) == 0
    assert all(point["perplexity"] > 1 and point["reason"] is None for point in answer.results["points"])


def test_a_point_is_the_perplexity_of_blocks_by_hand(asked):
    trained = asked("softmax")
    answer = extrapolation.ask(trained, samples=1)
    tokens = torch.from_numpy(np.asarray(trained.splits.test.tokens[:192], np.int64))
    assert answer.results["tokens"] == 192
    before = torch.cat([torch.tensor([2]), tokens[:-1]])
    for point in answer.results["points"]:
        blocks, target = (part.reshape(-1, point["length"]) for part in (before, tokens))
        with torch.no_grad():
            logits = trained.model(blocks)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        assert point["perplexity"] == pytest.approx(loss.exp().item(), rel=1e-4)


def test_weights_bound_to_a_length_end_in_a_sentence_and_the_rest_is_answered(asked):
    points = extrapolation.ask(asked("synthesizer"), samples=1).results["points"]
    for point in points:
        if point["length"] <= 32:
            assert point["perplexity"] > 1
        else:
            assert point["perplexity"] is None
            assert "bound to the 32 tokens of training" in point["reason"]


def test_running_out_of_memory_is_a_point_too(asked, monkeypatch):
    def full(*everything):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(extrapolation, "_longer", full)
    points = extrapolation.ask(asked("softmax"), samples=1).results["points"]
    assert [point["reason"] for point in points[-2:]] == ["out of memory on cpu"] * 2


def test_other_tasks_and_too_little_text_are_refused(asked):
    with pytest.raises(UsageError, match="asked of a language model, but the card is of mlm"):
        extrapolation.ask(asked("softmax", "mlm"))
    with pytest.raises(UsageError, match="too few for whole blocks of every length"):
        extrapolation.ask(asked("softmax", length=2_048))
