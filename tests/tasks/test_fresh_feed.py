"""Pictures that cannot be memorised: new in every epoch, randomly rotated or mirrored, the same after a resume."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan import datasets, tasks
from longspan.core.errors import UsageError
from longspan.datasets import pathfinder
from longspan.datasets.base import settings_of
from longspan.datasets.drawing.rules import CONTOUR_LENGTH, RULES, counts, counts_on_the_way
from longspan.runs import Cell, run
from longspan.tasks.base import Recipe
from longspan.tasks.fresh_feed import FreshFeed, symmetries
from longspan.training.order import ExampleOrder, LengthOrder, order_of

COUNT = 12
DATA = pathfinder.Data(difficulty="easy", train=COUNT, valid=4, test=4)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def load(root, **changes):
    data = pathfinder.Data(**{**vars(DATA), **changes})
    return datasets.get("pathfinder").load(data, root=root)


def feed(root, seed=0, **changes):
    torch.manual_seed(seed)
    return FreshFeed(load(root, **changes).train, "cpu", 1)


def epoch(feed, number):
    return feed.batch(np.arange(COUNT) + number * COUNT)


def test_the_first_epoch_is_on_disk_and_every_later_one_is_new(root):
    fresh = feed(root, fresh=1)
    first, second, third = (epoch(fresh, number) for number in (0, 1, 2))
    stored = np.asarray(load(root).train.tokens).reshape(COUNT, -1)
    assert np.array_equal(first.tokens.numpy(), stored.astype(np.int32) + 1)
    pictures = np.concatenate([batch.tokens.numpy() for batch in (first, second, third)])
    assert len(np.unique(pictures, axis=0)) == 3 * COUNT
    assert set(third.label.tolist()) <= {0, 1}


def test_pictures_may_be_kept_for_several_epochs(root):
    fresh = feed(root, fresh=2)
    kinds = [epoch(fresh, number).tokens for number in range(4)]
    assert torch.equal(kinds[0], kinds[1])
    assert torch.equal(kinds[2], kinds[3])
    assert not torch.equal(kinds[1], kinds[2])


def test_a_run_that_goes_on_in_the_third_epoch_has_its_pictures(root):
    whole, resumed = feed(root, fresh=1), feed(root, fresh=1)
    for number in range(2):
        epoch(whole, number)
    for found, expected in zip(vars(epoch(resumed, 2)).values(), vars(epoch(whole, 2)).values(), strict=True):
        assert found is expected is None or torch.equal(found, expected)


def test_a_batch_across_the_border_of_epochs_has_its_rows_in_order(root):
    fresh = feed(root, fresh=1)
    rows = np.array([COUNT + 3, COUNT - 1, COUNT, 2])
    batch = fresh.batch(rows)
    for place, row in enumerate(rows):
        one = fresh.batch(np.array([row]))
        assert torch.equal(batch.tokens[place], one.tokens[0])
        assert batch.label[place] == one.label[0]


def test_turned_pictures_are_symmetric_to_those_on_disk_and_belong_to_seed_and_row(root):
    plain, turned = feed(root, fresh=9), feed(root, symmetries=True)
    rows = np.arange(COUNT)
    torch.manual_seed(5)
    found = turned.batch(rows).tokens.reshape(COUNT, 32, 32)
    seen = set()
    for picture, original in zip(found, plain.batch(rows).tokens.reshape(COUNT, 32, 32), strict=True):
        ways = [w for k in range(4) for w in (torch.rot90(original, k), torch.rot90(original, k).flip(1))]
        matches = [way for way, one in enumerate(ways) if torch.equal(one, picture)]
        assert matches
        seen.add(matches[0])
    assert len(seen) > 2
    torch.manual_seed(5)  # a process with half of the rows
    assert torch.equal(turned.batch(rows[1::2]).tokens.reshape(-1, 32, 32), found[1::2])


def test_contours_grow_with_the_epochs_of_a_curriculum(root):
    """The fraction of lit pixels grows with the number of paddles and distractors, up to that of the images on disk."""
    grown = feed(root, fresh=1, curriculum=3, difficulty="hard")
    stored = np.asarray(load(root, difficulty="hard").train.tokens).reshape(COUNT, -1)
    lit = [(epoch(grown, number).tokens > 65).float().mean().item() for number in (0, 1, 2, 3)]
    assert lit == sorted(lit)
    assert lit[0] < 0.5 * lit[3]
    assert lit[3] == pytest.approx((stored > 64).mean(), rel=0.2)
    again = feed(root, fresh=1, curriculum=3, difficulty="hard")
    assert torch.equal(epoch(again, 1).tokens, epoch(grown, 1).tokens)


def test_without_a_curriculum_fresh_pictures_are_as_they_were(root):
    fresh, grown = (feed(root, fresh=1, curriculum=curriculum) for curriculum in (0, 2))
    assert not torch.equal(epoch(fresh, 1).tokens, epoch(grown, 1).tokens)
    assert torch.equal(epoch(fresh, 2).tokens, epoch(grown, 2).tokens)  # the curriculum has ended


@given(st.sampled_from(["easy", "intermediate", "hard"]), st.integers(1, 40), st.integers(0, 60))
def test_a_curriculum_goes_from_three_paddles_to_those_of_the_difficulty(difficulty, epochs, now):
    data = pathfinder.Data(difficulty=difficulty, fresh=1, curriculum=epochs)
    lengths, later = data.contours(now), data.contours(now + 1)
    assert max(lengths) <= max(later) <= CONTOUR_LENGTH[difficulty]
    assert min(lengths) >= CONTOUR_LENGTH["short"]
    assert lengths.count(max(lengths)) * 2 >= len(lengths)
    assert max(data.contours(0)) == CONTOUR_LENGTH["short"]
    assert data.contours(epochs) == [CONTOUR_LENGTH[difficulty]]


@pytest.mark.parametrize("difficulty", ["easy", "intermediate", "hard"])
@pytest.mark.parametrize("size", RULES)
def test_the_way_to_a_difficulty_ends_at_it(size, difficulty):
    rules = RULES[size]
    way = [counts_on_the_way(rules, difficulty, n) for n in range(3, CONTOUR_LENGTH[difficulty] + 1)]
    assert way[0].distractors == 0
    assert way[-1] == counts(rules, difficulty)
    assert min(step.distractor for step in way) >= 2


@pytest.mark.parametrize(
    "changes",
    [
        {"curriculum": -1, "fresh": 1},
        {"curriculum": 3},
        {"curriculum": 3, "fresh": 1, "size": 12, "difficulty": "short"},
    ],
)
def test_a_curriculum_that_cannot_be_is_refused(changes):
    with pytest.raises(UsageError, match="curriculum"):
        pathfinder.Data(**changes)


def test_there_are_eight_symmetries():
    table = symmetries(4)
    assert len({tuple(row) for row in table.tolist()}) == 8
    assert (table.sort(dim=1).values == torch.arange(16)).all()


def test_validation_and_test_are_those_on_disk_and_only_the_card_knows(root):
    fixed, fresh = load(root), load(root, fresh=1, symmetries=True)
    assert np.array_equal(fixed.test.tokens, fresh.test.tokens)
    assert np.array_equal(fixed.valid.labels, fresh.valid.labels)
    assert fixed.sha256 != fresh.sha256
    assert settings_of(DATA).keys() == {"size", "difficulty", "train", "valid", "test", "seed", "split"}


def test_rows_of_an_order_may_carry_their_epoch():
    plain, numbered = (ExampleOrder(10, 4, 0, numbered=numbered) for numbered in (False, True))
    for step in range(8):
        rows = numbered.rows(step)
        assert (rows % 10).tolist() == plain.rows(step).tolist()
        assert (rows // 10).tolist() == [place // 10 for place in range(4 * step, 4 * step + 4)]


def test_rows_in_order_of_length_carry_their_epoch_too(root):
    recipe = Recipe(steps=9, batch_size=4, learning_rate=0.1, warmup=0, order="by_length")
    plain = LengthOrder(np.full(COUNT, 9), recipe, 0)
    order = order_of(feed(root, fresh=1), recipe, 0, 1)
    for step in range(9):
        ((rows,), (expected,)) = order.parts(step), plain.parts(step)
        assert rows.tolist() == (expected + step // 3 * COUNT).tolist()


def test_longspan_draws_new_pictures_and_raised_its_version():
    task = tasks.get("pathfinder")
    assert task.meta.version == 2
    data = task.protocol("longspan", "full").data
    assert (data.fresh, data.symmetries) == (1, True)
    for protocol in ("lra-paper", "lra-released", "strong"):
        assert not task.protocol(protocol, "full").data.fresh


def test_a_run_trains_on_fresh_pictures(tmp_path, root):
    few = {"data.train": COUNT, "data.valid": 4, "data.test": 4, "data.fresh": 1, "data.symmetries": True}
    few |= {"recipe.steps": 4, "recipe.batch_size": 8, "recipe.evaluate_every": 2, "recipe.warmup": 1}
    cell = Cell("pathfinder", "linear", None, "longspan", "smoke", 0, few)
    card = run(cell, out=tmp_path, data=root, device="cpu", weights=False, progress=False)
    assert (card["status"], card["task_version"], card["settings"]["data"]["fresh"]) == ("ok", 2, 1)


def test_lit_pixels_are_counted_in_every_epoch_and_on_disk(root):
    task = tasks.get("pathfinder")
    protocol = task.protocol("longspan", "full").override({"model.hide_zeros": True, "model.zero_rule": "drop"})
    splits = load(root, fresh=1, symmetries=True)
    rows = np.array([COUNT + 3, COUNT - 1, COUNT, 2])
    drawn = task.feed(splits.train, protocol, "cpu").batch(rows)
    (_, stored), *_ = task.feed(splits.valid, protocol, "cpu").in_batches(np.array([3, 0]), 2)
    for batch in (drawn, stored):
        assert batch.lengths.lengths.tolist() == (batch.tokens > 0).sum(dim=1).tolist()
        assert 0 < batch.lengths.max_seqlen < batch.tokens.shape[1]
