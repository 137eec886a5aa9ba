"""Pictures that cannot be memorised: new ones in every epoch, turned at random, the same again after a break."""

import numpy as np
import pytest
import torch

from longspan import datasets, tasks
from longspan.datasets import pathfinder
from longspan.datasets.base import settings_of
from longspan.runs import Cell, run
from longspan.tasks.fresh_feed import FreshFeed, symmetries
from longspan.training.order import ExampleOrder

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
