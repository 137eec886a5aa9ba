"""Language tasks: every token is predicted once, masks follow the protocol, a resumed run gives the same numbers."""

import dataclasses
import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from longspan import attentions, tasks
from longspan.core.errors import UsageError
from longspan.core.seeding import seed_everything
from longspan.datasets import pg19
from longspan.datasets.base import Splits
from longspan.datasets.bpe import BEGIN, END, PAD, SPECIALS
from longspan.runs.fabric import make_fabric
from longspan.tasks import language
from longspan.tasks.lm import BlockFeed
from longspan.tasks.mlm import Chance, RowFeed, hide
from longspan.training.loop import train

LM, MLM = tasks.get("lm"), tasks.get("mlm")
VOCABULARY = 65_000  # the highest ids are negative as signed 16-bit integers
TINY = {"model.dim": 8, "model.layers": 1, "model.mlp": 8, "recipe.steps": 8, "recipe.batch_size": 4}
TINY |= {"recipe.evaluate_every": 3, "recipe.warmup": 2, "data.vocabulary": 300, "recipe.accumulate": 2}


def stream(tokens, length, breaks="none", vocabulary=VOCABULARY):
    array = np.array(tokens, np.uint16)
    counts = np.bincount(array, minlength=vocabulary)
    return pg19.Stream(tokens=array, frequencies=counts, **pg19._rows(array, length, breaks))


tokens_of_text = st.lists(st.integers(2, VOCABULARY - 1), min_size=1, max_size=40)


@given(tokens_of_text, st.integers(1, 12), st.integers(1, 5), st.booleans())
@settings(deadline=None)
def test_every_token_is_asked_for_once_from_the_one_before_it(tokens, length, size, resident):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language, "RESIDENT", 1 << 30 if resident else 0)
        feed = BlockFeed(stream(tokens, length), "cpu", length)
    asked = {}
    for places, batch in feed.in_batches(np.arange(len(feed)), size):
        for place, row, target, count in zip(places, batch.tokens, batch.target, batch.counts, strict=True):
            assert (target >= 0).sum() == count
            asked[place] = (row[:count].tolist(), target[:count].tolist())
    seen = [token for place in sorted(asked) for token in asked[place][1]]
    given_ = [token for place in sorted(asked) for token in asked[place][0]]
    assert seen == tokens
    assert given_ == [END, *tokens[:-1]]


@given(st.lists(st.integers(2, 9), min_size=1, max_size=60), st.integers(1, 12), st.integers(0, 9))
@settings(deadline=None)
def test_what_is_hidden_is_a_share_of_the_text_and_nothing_else_changes(tokens, length, seed):
    data = pg19.Data(length=length, vocabulary=300)
    feed = RowFeed(stream(tokens, length, "complete"), "cpu", data)
    batch = feed.batch(np.arange(len(feed)))
    torch.manual_seed(seed)
    hidden = hide(batch, Chance.drawn(batch))
    width = batch.tokens.shape[1]
    assert (batch.tokens[:, 0] == BEGIN).all()
    assert hidden.mask is None or hidden.mask.sum(dim=1).tolist() == batch.lengths.tolist()
    for i, n in enumerate(batch.lengths):
        count = max(1, math.floor(0.15 * (n - 1) + 0.5))
        places = hidden.places[i, :count]
        assert hidden.counts[i] == count == len(set(places.tolist()))
        assert places.min() >= 1
        assert places.max() < n
        assert hidden.target[i, :count].tolist() == batch.tokens[i, places].tolist()
        assert (hidden.target[i, count:] == -1).all()
        elsewhere = sorted(set(range(width)) - set(places.tolist()))
        assert hidden.tokens[i, elsewhere].tolist() == batch.tokens[i, elsewhere].tolist()
        assert (batch.tokens[i, n:] == PAD).all()


def test_eighty_ten_ten():
    data = pg19.Data(length=1_000, vocabulary=5_000)
    feed = RowFeed(stream([4] * 200_000, 1_000), "cpu", data)
    batch = feed.batch(np.arange(200))
    torch.manual_seed(0)
    hidden = hide(batch, Chance.drawn(batch))
    shown = hidden.tokens.gather(1, hidden.places)
    share = [(shown == what).double().mean().item() for what in (data.vocabulary, 4)]
    assert hidden.counts.tolist() == [150] * 200
    assert share == pytest.approx([0.8, 0.1], abs=0.01)
    others = shown[(shown != data.vocabulary) & (shown != 4)]
    assert others.min() >= len(SPECIALS)
    assert others.max() < data.vocabulary
    assert len(others.unique()) > 2_000


def test_validation_masks_belong_to_the_row_and_training_masks_to_the_step():
    data = pg19.Data(length=20, vocabulary=300)
    feed = RowFeed(stream([5, 6, 7, END] * 30, 20), "cpu", data)
    together = feed.batch(np.arange(6))
    alone = feed.batch(np.array([4]))
    both = hide(together, Chance.settled(together)), hide(alone, Chance.settled(alone))
    torch.testing.assert_close(both[0].tokens[4:5], both[1].tokens)
    torch.testing.assert_close(both[0].places[4:5], both[1].places)
    other = RowFeed(stream([5, 6, 7, END] * 30, 20), "cpu", dataclasses.replace(data, seed=1)).batch(np.arange(6))
    assert not torch.equal(hide(other, Chance.settled(other)).places, both[0].places)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        again = feed.batch(np.arange(6))
        drawn.append(hide(again, Chance.drawn(again)).places)
    torch.testing.assert_close(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@given(st.lists(st.integers(0, 11), min_size=1, max_size=8), st.integers(0, 9))
def test_what_a_step_hides_in_a_row_does_not_depend_on_the_rows_beside_it(rows, seed):
    """So that several processes hide the same tokens as one, however they share a batch."""
    data = pg19.Data(length=20, vocabulary=300)
    feed = RowFeed(stream([5, 6, 7, 8, END, 9, END] * 20, 20, "complete"), "cpu", data)

    def hidden(rows):
        torch.manual_seed(seed)
        batch = feed.batch(np.asarray(rows))
        return hide(batch, Chance.drawn(batch))

    together = hidden(range(len(feed)))
    some = hidden([row % len(feed) for row in rows])
    for i, row in enumerate(rows):
        n, row = some.counts[i], row % len(feed)
        assert n == together.counts[row]
        assert torch.equal(some.places[i, :n], together.places[row, :n])
        assert torch.equal(some.tokens[i], together.tokens[row, : some.tokens.shape[1]])


class Half(nn.Module):
    """Gives every even target probability 1/2, every odd one 1/8."""

    def forward(self, tokens, target):
        return torch.where(target % 2 == 0, math.log(2), math.log(8)) * (target >= 0)


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_perplexity_weighs_tokens_and_not_rows(batch_size):
    split = stream([2, 4, 6, 8, 3], 4)  # two rows: four tokens at ln 2, one at ln 8
    rules = LM.protocol("longspan", "smoke").override({"data.length": 4})
    feed = LM.feed(split, rules, "cpu")
    found = LM.evaluate(Half(), feed, np.arange(2), batch_size)
    assert found.count == 5
    assert found.metrics["loss"] == pytest.approx((4 * math.log(2) + math.log(8)) / 5)
    assert found.metrics["perplexity"] == pytest.approx(2 ** (7 / 5))
    assert found.predictions["tokens"].tolist() == [4, 1]
    result = LM.loss(Half(), feed.batch(np.arange(2)))
    assert result.count == 5
    assert float(result.loss) == pytest.approx(found.metrics["loss"])


def test_chance_is_the_perplexity_of_training_unigrams():
    split = dataclasses.replace(stream([2, 3], 2, vocabulary=4), frequencies=np.array([0, 0, 3, 1]))
    assert LM.chance(split) == pytest.approx((4 / 8 * 2 / 8) ** -0.5)


def test_label_smoothing_is_refused():
    feed = LM.feed(stream([2, 3, 4], 2), LM.protocol("longspan", "smoke"), "cpu")
    with pytest.raises(UsageError, match=r"label_smoothing must be 0, got 0\.1"):
        LM.loss(Half(), feed.batch(np.arange(1)), smoothing=0.1)


# ----------------------------------------------------------------------------------------------------------- protocols


def test_cab_settings_are_the_published_ones():
    lm, mlm = (task.protocol("cab-2023", "full") for task in (LM, MLM))
    assert (lm.data.length, lm.data.breaks, lm.data.tokenizer, lm.data.vocabulary) == (8_192, "none", "gpt2", 48_528)
    assert (mlm.data.length, mlm.data.breaks, mlm.data.scored) == (2_047, "complete", "validation")
    for rules, batch, warmup, rate in ((lm, 16, 10_000, 5e-4), (mlm, 256, 5_000, 3e-4)):
        model, recipe = rules.model, rules.recipe
        assert (model.dim, model.heads, model.layers, model.mlp, model.attention_dropout) == (768, 12, 12, 3_072, 0.1)
        assert (recipe.steps, recipe.batch_size, recipe.warmup, recipe.learning_rate) == (125_000, batch, warmup, rate)
        assert (recipe.weight_decay, recipe.clip, recipe.selection) == (0.01, None, "best")
    assert (lm.model.dropout, lm.recipe.schedule, lm.recipe.betas, lm.recipe.initial_rate, lm.recipe.eps) == (
        *(0.0, "inverse_sqrt", (0.9, 0.999)),
        *(1e-7, 1e-8),
    )
    assert (mlm.model.dropout, mlm.recipe.schedule, mlm.recipe.betas, mlm.recipe.eps) == (
        *(0.1, "polynomial"),
        *((0.9, 0.98), 1e-6),
    )


@pytest.mark.parametrize("task, wanted", [(LM, 122_325_504), (MLM, 124_541_329)], ids=["lm", "mlm"])
@pytest.mark.parametrize("protocol", ["cab-2023", "longspan"])
def test_the_whole_task_has_the_published_number_of_parameters(task, wanted, protocol):
    with torch.device("meta"):
        model = task.model(attentions.get("softmax"), task.protocol(protocol, "full"))
    assert sum(parameter.numel() for parameter in model.parameters()) == wanted


# -------------------------------------------------------------------------------------------------------------- resume


class Killed(Exception):
    """Stands for the end of the process."""


def train_small(task, folder, kill=None):
    rules = task.protocol("longspan", "smoke").override(TINY | {"data.length": 9})
    text = np.random.default_rng(0).integers(4, 300, 200)
    splits = Splits(*(stream(text[a:b], 9, vocabulary=300) for a, b in ((0, 130), (130, 165), (165, 200))), manifest={})
    seed_everything(0)

    def watch(progress, steps):
        if progress.step == kill:
            raise Killed

    model = task.model(attentions.get("softmax"), rules)
    fabric = make_fabric("cpu", "fp32", 1)
    return train(task, model, splits, rules, fabric=fabric, seed=0, folder=folder, watch=watch, save_every_seconds=-1.0)


@pytest.mark.parametrize("task", [LM, MLM], ids=["lm", "mlm"])
def test_a_run_killed_between_evaluations_goes_on_to_the_same_numbers(task, tmp_path):
    whole = train_small(task, tmp_path / "whole")
    for kill in (2, 5):
        with pytest.raises(Killed):
            train_small(task, tmp_path / "cut", kill)
        torch.manual_seed(99)
    cut = train_small(task, tmp_path / "cut")
    assert cut.progress.resumed == 2
    assert cut.progress.curve == whole.progress.curve
    assert cut.test.metrics == whole.test.metrics
    np.testing.assert_array_equal(cut.test.predictions["nats"], whole.test.predictions["nats"])


@pytest.mark.parametrize("resident", [True, False])
def test_a_corpus_may_be_larger_than_the_memory(resident, tmp_path, monkeypatch):
    """A hundred megabytes on disk, of which feed, batches and chance hold a few in memory at a time."""
    monkeypatch.setattr(language, "RESIDENT", 1 << 30 if resident else 0)
    tokens = np.lib.format.open_memmap(tmp_path / "tokens.npy", "w+", np.uint16, (50_000_000,))
    tokens[-1] = 7
    stream = np.load(tmp_path / "tokens.npy", mmap_mode="r")
    split = pg19.Stream(stream, **pg19._rows(stream, 1_000, "none"), frequencies=np.ones(260, np.int64))
    task = tasks.get("lm")
    rules = task.protocol("longspan", "smoke").override({"data.length": 1_000})
    tracemalloc.start()
    feed = task.feed(split, rules, "cpu")
    assert feed.batch(np.array([3, len(feed) - 1])).target[1, -1] == 7
    assert task.chance(split) == pytest.approx(260)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20
