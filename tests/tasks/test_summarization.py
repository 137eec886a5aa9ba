"""Summarization: the loss is over words, generated text is scored as text, an interrupted run ends the same."""

import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from longspan import attentions, runs, tasks
from longspan.core.errors import UsageError
from longspan.metrics.rouge import rouge
from longspan.results import card as cards
from longspan.results.store import Store
from longspan.tasks.base import Protocol
from longspan.tasks.summarization import clean_up
from longspan.training import loop

TASK = tasks.get("summarization")
SMOKE = TASK.protocol("longspan", "smoke")
TINY = {  # 3.75 batches per epoch, two parts per batch
    "data.train": 30,
    "data.valid": 6,
    "data.test": 8,
    "data.source": 60,
    "data.target": 20,
    "data.size": 300,
    "model.dim": 16,
    "model.heads": 2,
    "model.mlp": 16,
    "model.dropout": 0.1,
    "model.longest": 12,
    "recipe.steps": 11,
    "recipe.batch_size": 8,
    "recipe.accumulate": 2,
    "recipe.evaluate_every": 4,
    "recipe.warmup": 3,
    "recipe.evaluation_batch": 4,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def splits(data):
    return TASK.splits(SMOKE.override(TINY), data)


def build(rules: Protocol, mechanism: str = "softmax"):
    torch.manual_seed(0)
    return TASK.model(attentions.get(mechanism), rules).eval()


# ------------------------------------------------------------------------------------------------------------- batches


def test_a_batch_holds_the_tokens_of_its_rows_and_padding_after_them(splits):
    feed = TASK.feed(splits.train, SMOKE.override(TINY), "cpu")
    ids, pad = splits.train.ids, splits.train.vocabulary.pad
    rows = np.array([7, 0, 29, 7])
    batch = feed.batch(rows)
    for column, (texts, lengths) in enumerate(
        [(batch.source, batch.source_lengths), (batch.target, batch.target_lengths)]
    ):
        assert lengths == ids.lengths[rows, column].tolist()
        for line, row, length in zip(texts.tolist(), rows, lengths, strict=True):
            assert line == ids.example(row)[column].tolist() + [pad] * (len(line) - length)
        assert texts.shape[1] <= (60, 21)[column]
    together = {
        int(row): place
        for places, part in feed.in_batches(rows[:3], 2)
        for place, row in zip(places, rows[:3][places], strict=True)
    }
    assert together == {7: 0, 0: 1, 29: 2}


def test_ids_beyond_fifteen_bits_survive_the_feed(splits):
    rules = SMOKE.override(TINY | {"data.size": 65_536})
    high = np.array([40_000, 65_535, 2, 0, 50_264, 2], np.uint16)
    split = splits.train
    ids = type(split.ids)(high, np.array([[0, 3]]), np.array([[3, 6]]), np.zeros(1, np.uint8))
    feed = TASK.feed(
        type(split)(split.tokens, split.starts[:1], split.stops[:1], split.labels[:1], ids, split.vocabulary),
        rules,
        "cpu",
    )
    batch = feed.batch(np.array([0]))
    assert batch.source.tolist() == [[40_000, 65_535, 2]]
    assert batch.target.tolist() == [[0, 50_264, 2]]


# ---------------------------------------------------------------------------------------------------------------- loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_torchs_smoothed_cross_entropy_over_real_words(splits, smoothing):
    rules = SMOKE.override(TINY)
    model = build(rules)
    batch = TASK.feed(splits.train, rules, "cpu").batch(np.arange(5))
    result = TASK.loss(model, batch, smoothing=smoothing)
    logits = model(batch.source, batch.source_lengths, batch.target[:, :-1])
    labels = batch.target[:, 1:].long()
    for row, length in enumerate(batch.target_lengths):
        labels[row, length - 1 :] = -100
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    torch.testing.assert_close(result.loss, expected)
    assert result.count == sum(batch.target_lengths) - 5
    plain = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    torch.testing.assert_close(result.sums["loss"], plain.detach())


# ---------------------------------------------------------------------------------------------------------- evaluation


def test_scores_are_rouge_of_the_text_that_is_kept_beside_the_card(splits):
    rules = SMOKE.override(TINY)
    feed = TASK.feed(splits.test, rules, "cpu")
    model = build(rules)
    with torch.no_grad():
        result = TASK.evaluate(model, feed, np.arange(8), 3)
        again = TASK.evaluate(model, feed, np.arange(8)[::-1].copy(), 8)
    kept, other = result.predictions, again.predictions
    assert result.count == 8
    assert kept["tokens"].shape == (8, 12)
    for name in ("tokens", "text", "rouge1"):
        assert np.array_equal(kept[name], other[name][::-1]), "neither batches nor order change what is written"
    expected = rouge(kept["text"].tolist(), [splits.test.summary(row) for row in range(8)])
    assert {name: result.metrics[name] for name in expected} == {name: v.mean() for name, v in expected.items()}
    losses = TASK.loss(model, feed.batch(np.arange(8)))
    assert result.metrics["loss"] == pytest.approx(float(losses.loss.detach()), rel=1e-5)


CAB = TASK.protocol("cab-2023", "smoke").override({"model.shortest": 0} | TINY)


def test_cab_writes_in_the_order_of_the_file_and_longspan_by_length(splits):
    """In CAB the batch decides when its rows stop, so it must be the same everywhere."""
    orders = []
    for rules in (CAB, SMOKE.override(TINY)):
        feed = TASK.feed(splits.test, rules, "cpu")
        feed.lengths = np.stack([np.arange(8, 0, -1), feed.lengths[:, 1]], axis=1)  # the longest first
        orders.append([places.tolist() for places, _ in feed.to_write(np.arange(8), 3)])
    assert orders == [[[0, 1, 2], [3, 4, 5], [6, 7]], [[7, 6, 5], [4, 3, 2], [1, 0]]]


def test_cab_keeps_what_follows_an_end_token_and_longspan_does_not(splits):
    words = splits.test.ids.example(0)[1][1:7].tolist()
    begin, pad, end = (getattr(splits.test.vocabulary, name) for name in ("begin", "pad", "end"))
    line = np.array([begin, *words[:3], end, pad, *words[3:], end, pad], np.uint16)
    texts = [TASK.feed(splits.test, rules, "cpu").text(line) for rules in (CAB, SMOKE.override(TINY))]
    spoken = [splits.test.vocabulary.text(part) for part in (words, words[:3])]
    assert texts == [clean_up(spoken[0]), spoken[1]]


def test_cab_never_trains_the_second_position(splits):
    for rules, trained in ((CAB, False), (SMOKE.override(TINY), True)):
        model = build(rules)
        TASK.loss(model, TASK.feed(splits.train, rules, "cpu").batch(np.arange(8))).loss.backward()
        for tokens in (model.source, model.target):
            moved = tokens.positions.grad.abs().sum(dim=1) > 0
            assert moved[[0, 2, 3]].all()
            assert bool(moved[1]) == trained


def test_whoever_knows_only_what_summaries_look_like_gets_less_than_all(splits):
    chance = TASK.chance(splits.test)
    assert 0.3 < chance < 0.9, "the made-up summaries share their frame and not their facts"


# ---------------------------------------------------------------------------------------------------------------- runs


def run(out, data, mechanism="softmax", pattern=None, changes=(), **more):
    cell = runs.Cell("summarization", mechanism, pattern, overrides=TINY | dict(changes))
    return runs.run(cell, out=out, data=data, device="cpu", progress=False, **more)


def outcome(card, out):
    (path, _), *_ = ((path, one) for path, one in Store(out / "cards").entries() if one["sha256"] == card["sha256"])
    with np.load(path.with_name(card["files"]["predictions"])) as arrays:
        predictions = {name: arrays[name].tolist() for name in arrays.files}
    parts = ("curve", "metrics", "score", "selected_step", "parameters", "dataset", "settings", "slots")
    return {part: card[part] for part in parts} | predictions


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("step", [6, 9])  # within an epoch, before and after the boundary between two epochs
def test_a_run_cut_in_the_middle_of_an_epoch_ends_with_the_card_of_an_unbroken_one(step, data, tmp_path, monkeypatch):
    whole = run(tmp_path / "whole", data)
    update, monkeyed = loop.set_learning_rate, []

    def die(optimizer, rate):
        monkeyed.append(rate)
        if len(monkeyed) > step:
            raise Killed
        update(optimizer, rate)

    monkeypatch.setattr(loop, "SAVE_EVERY_SECONDS", -1)
    with monkeypatch.context() as patched:
        patched.setattr(loop, "set_learning_rate", die)
        with pytest.raises(Killed):
            run(tmp_path / "cut", data)
    resumed = run(tmp_path / "cut", data)
    assert resumed["timing"]["resumed"] == 1
    assert outcome(resumed, tmp_path / "cut") == outcome(whole, tmp_path / "whole")


@pytest.mark.parametrize(
    "mechanism, pattern, slot", [("abc", "CS", "decoder.0.attention"), ("performer", "CC", "decoder.0.cross")]
)
def test_every_pattern_can_be_replaced_and_the_card_lists_the_slots(mechanism, pattern, slot, data, tmp_path):
    card = run(tmp_path, data, mechanism, pattern, {"recipe.steps": 2, "recipe.evaluate_every": 2})
    replaced = {name for name, what in card["slots"].items() if not what.startswith("Softmax")}
    assert replaced == {slot}
    assert len(card["slots"]) == 3
    assert cards.read(next(path for path, _ in Store(tmp_path / "cards").entries()), "run") == card


def test_a_run_in_mixed_precision_writes_and_is_scored(data, tmp_path):
    card = run(tmp_path, data, changes={"recipe.steps": 2, "recipe.evaluate_every": 2}, precision="bf16")
    assert card["settings"]["precision"] == "bf16"
    assert 0 <= card["score"]["value"] <= 1


def test_made_up_rows_are_as_long_as_the_protocol_allows():
    rules = TASK.protocol("cab-2023", "full")
    batch = TASK.feed(TASK.made_up(rules, 3), rules, "cpu").batch(np.arange(3))
    assert (batch.source_lengths, batch.target_lengths) == ([4_096] * 3, [401] * 3)
    assert int(batch.source.max()) < rules.data.size


@pytest.mark.full
def test_the_smoke_model_learns_to_state_the_facts(tmp_path):
    card = runs.run(runs.Cell("summarization", "softmax"), out=tmp_path, data=tmp_path, device="cpu", progress=False)
    assert card["score"]["value"] > 0.8 > card["score"]["chance"] + 0.1
    assert card["curve"][0]["valid_loss"] > card["curve"][-1]["valid_loss"]
    assert card["dataset"]["variant"] == "standin"


# -------------------------------------------------------------------------------------------------------------- errors


def test_texts_longer_than_the_positions_are_refused_before_training():
    with pytest.raises(UsageError, match="Texts of 200 and 20 tokens do not fit a network with 128 and 32 positions"):
        build(SMOKE.override(TINY | {"data.source": 200}))


def test_a_vocabulary_larger_than_the_networks_is_refused(splits):
    with pytest.raises(UsageError, match=r"has 280 entries, but the texts are written in a vocabulary of 300"):
        TASK.feed(splits.train, SMOKE.override(TINY | {"data.size": 280}), "cpu")


def test_a_missing_rouge_score_is_missed_before_training(splits, monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(UsageError, match="pip install rouge-score"):
        TASK.feed(splits.train, SMOKE.override(TINY), "cpu")


@pytest.mark.parametrize("protocol", ["longspan", "cab-2023"])
def test_both_protocols_have_the_parameters_of_cab(protocol):
    assert runs.count_parameters("summarization", "softmax", protocol, "full")["total"] == 123_706_880
