"""Tokens in, one label out: batches hold the examples, scores follow from the predictions."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from longspan import attentions, tasks
from longspan.core.errors import UsageError
from longspan.datasets import pathfinder
from longspan.datasets.base import Split
from longspan.runs import Cell, RunPlan
from longspan.tasks.token_feed import TokenFeed
from longspan.training.cuda_graph_step import shape_of

LISTOPS, PATHFINDER = tasks.get("listops"), tasks.get("pathfinder")


@st.composite
def some_splits(draw):
    rows = draw(st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=9), min_size=1, max_size=8))
    labels = draw(st.lists(st.integers(0, 9), min_size=len(rows), max_size=len(rows)))
    return split_of(rows, labels)


def lengths_in(batch):
    """The lengths of its texts; the batch has none if all rows are full."""
    rows, width = batch.tokens.shape
    if batch.lengths is None:
        return [width] * rows
    assert batch.lengths.total == batch.lengths.lengths.sum()
    assert batch.lengths.max_seqlen >= batch.lengths.lengths.max()
    return batch.lengths.lengths[: batch.lengths.count].tolist()


def split_of(rows, labels):
    starts = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    return Split.of_rows(np.concatenate(rows).astype(np.uint8), starts, np.array(labels, np.uint8))


@given(some_splits(), st.integers(0, 2), st.data())
@settings(deadline=None)
def test_a_batch_holds_its_examples_shifted_and_zeros_after_them(split, shift, data):
    rows = np.array(data.draw(st.lists(st.integers(0, len(split) - 1), min_size=1, max_size=6)))
    feed = TokenFeed(split, "cpu", shift)
    batch = feed.batch(rows)
    assert len(feed) == len(split)
    width = batch.tokens.shape[1]
    assert lengths_in(batch) == split.lengths[rows].tolist()
    assert max(lengths_in(batch)) <= width <= max(split.lengths)
    assert batch.label.tolist() == split.labels[rows].tolist()
    for place, row in enumerate(rows):
        example = split.example(row).astype(int) + shift
        assert batch.tokens[place].tolist() == [*example, *[0] * (width - len(example))]


@given(some_splits(), st.data())
@settings(deadline=None)
def test_a_batch_of_pairs_holds_all_first_texts_and_then_all_second_ones(split, data):
    first, second = (
        np.array(data.draw(st.lists(st.integers(0, len(split) - 1), min_size=4, max_size=4))) for _ in range(2)
    )
    pairs = Split(
        split.tokens,
        np.stack([split.starts[first], split.starts[second]], axis=1),
        np.stack([split.stops[first], split.stops[second]], axis=1),
        np.arange(4, dtype=np.uint8),
    )
    rows = np.array(data.draw(st.permutations(range(4))))
    batch = TokenFeed(pairs, "cpu").batch(rows)
    texts = [pairs.example(row)[text] for text in (0, 1) for row in rows]
    assert lengths_in(batch) == [len(text) for text in texts]
    assert batch.label.tolist() == rows.tolist()
    for row, text in zip(batch.tokens.tolist(), texts, strict=True):
        assert row[: len(text)] == text.tolist()
        assert not any(row[len(text) :])


def test_batches_for_a_gpu_come_in_few_shapes_and_mean_the_same(monkeypatch):
    monkeypatch.setattr("longspan.tasks.token_feed.TOTAL_STEP", 32)
    draw = np.random.default_rng(0)
    split = split_of([draw.integers(1, 255, n) for n in draw.integers(1, 65, 200)], draw.integers(0, 10, 200))
    rules = LISTOPS.protocol("longspan", "smoke")
    torch.manual_seed(0)
    model = LISTOPS.model(attentions.get("softmax"), rules).eval()
    feed = TokenFeed(split, "cpu")
    shapes = set()
    for _ in range(20):
        rows = draw.integers(0, 200, 4)
        batch, filled = feed.batch(rows), feed.filled(rows)
        shapes.add(shape_of(filled))
        assert filled.lengths.total % 32 == 0
        assert lengths_in(filled) == lengths_in(batch)
        torch.testing.assert_close(
            model(filled.tokens % 16, filled.lengths), model(batch.tokens % 16, batch.lengths), atol=1e-5, rtol=1e-5
        )
    assert len(shapes) <= 4 * 64 // 32


def test_batches_come_in_few_widths():
    lengths = np.arange(1, 400)
    split = split_of([[1] * n for n in lengths], lengths % 10)
    feed = TokenFeed(split, "cpu")
    widths = {feed.batch(np.array([row])).tokens.shape[1] for row in range(len(split))}
    assert widths == {64, 128, 192, 256, 320, 384, 399}


@given(some_splits(), st.integers(1, 5), st.data())
@settings(deadline=None)
def test_batches_of_a_feed_give_every_row_once(split, size, data):
    rows = np.array(data.draw(st.permutations(range(len(split)))))
    batches = list(TokenFeed(split, "cpu").in_batches(rows, size))
    assert sorted(np.concatenate([places for places, _ in batches])) == list(range(len(rows)))
    for places, batch in batches:
        assert 1 <= len(places) <= size
        assert lengths_in(batch) == split.lengths[rows[places]].tolist()
        assert batch.label.tolist() == split.labels[rows[places]].tolist()


@pytest.mark.parametrize("protocol, shift", [("longspan", 1), ("lra-paper", 1), ("lra-released", 0)])
def test_black_pixels_have_an_id_of_their_own_except_in_the_release(protocol, shift):
    rules = PATHFINDER.protocol(protocol, "full")
    images, labels = pathfinder.generate(rules.data, 2, 0)
    feed = PATHFINDER.feed(split_of(images.reshape(2, -1), labels), rules, "cpu")
    batch = feed.batch(np.arange(2))
    assert np.array_equal(batch.tokens.numpy(), images.reshape(2, -1).astype(int) + shift)
    assert bool((batch.tokens == 0).any()) is (shift == 0)


class Oracle(nn.Module):
    """Predicts the first token of each row with certainty, whatever else the batch holds."""

    def forward(self, tokens, lengths):
        return 20.0 * nn.functional.one_hot(tokens[:, 0].long(), 10)


@given(some_splits(), st.integers(1, 5), st.data())
@settings(deadline=None)
def test_an_evaluation_is_the_score_of_its_predictions_in_the_order_asked(split, size, data):
    split = dataclasses.replace(split, tokens=split.tokens % 10)
    rows = np.array(data.draw(st.permutations(range(len(split)))))
    rules = LISTOPS.protocol("longspan", "smoke")
    result = LISTOPS.evaluate(Oracle(), LISTOPS.feed(split, rules, "cpu"), rows, size)
    first = np.array([split.example(row)[0] for row in rows])
    assert result.predictions["row"].tolist() == rows.tolist()
    assert result.predictions["prediction"].tolist() == first.tolist()
    assert result.predictions["label"].tolist() == split.labels[rows].tolist()
    assert result.metrics["accuracy"] == np.mean(first == split.labels[rows])
    losses = nn.functional.cross_entropy(
        20.0 * nn.functional.one_hot(torch.tensor(first).long(), 10), torch.tensor(split.labels[rows]).long()
    )
    assert result.metrics["loss"] == pytest.approx(losses.item(), abs=1e-5)
    assert result.count == len(rows)


def test_the_loss_of_a_step_is_cross_entropy_and_its_sums_are_per_example():
    split = split_of([[1, 5], [2], [3, 3, 3]], [1, 9, 3])
    feed = LISTOPS.feed(split, LISTOPS.protocol("longspan", "smoke"), "cpu")
    result = LISTOPS.loss(Oracle(), feed.batch(np.arange(3)))
    assert result.count == 3
    assert result.sums["accuracy"] == 2
    assert result.loss.item() == pytest.approx(20 / 3, rel=1e-6)
    assert result.sums["loss"].item() == pytest.approx(20, rel=1e-6)


@given(some_splits())
def test_chance_is_the_rate_of_the_commonest_answer(split):
    assert LISTOPS.chance(split) == max(np.mean(split.labels == label) for label in range(10))


@pytest.mark.parametrize("task", ["listops", "text", "retrieval"])
@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model.input_mode": "continuous"}, "not intensities"),
        ({"model.hide_zeros": True, "model.zero_rule": "drop"}, "no black pixels"),
    ],
)
def test_what_is_asked_of_pixels_is_refused_for_symbols(task, changes, message):
    plan = RunPlan.of(Cell(task, "softmax", None, "longspan", "smoke", 0, changes))
    with pytest.raises(UsageError, match=message):
        plan.model()
