"""Rows in groups of similar length: every row once an epoch, whichever step is requested first."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.tasks.base import Recipe
from longspan.training.order import LengthOrder

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=60)


def recipe(group, parts, **more):
    return Recipe(steps=1, batch_size=group * parts, learning_rate=0.1, warmup=0, accumulate=parts, **more)


@given(LENGTHS, st.integers(1, 6), st.integers(1, 4), st.integers(0, 3))
def test_every_epoch_has_every_row_once_in_groups_of_like_length(lengths, group, parts, seed):
    order = LengthOrder(np.array(lengths), recipe(group, parts), seed)
    groups = -(-len(lengths) // group)
    for epoch in range(2):
        batches = [order.parts(epoch * order.updates + step) for step in range(order.updates)]
        seen = [one for batch in batches for one in batch]
        assert order.updates == -(-groups // parts)
        assert [len(batch) for batch in batches[:-1]] == [parts] * (order.updates - 1)
        assert sorted(np.concatenate(seen)) == list(range(len(lengths)))
        assert sorted(len(one) for one in seen)[1:] == [group] * (groups - 1)
        bounds = sorted((min(lengths[row] for row in one), max(lengths[row] for row in one)) for one in seen)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(bounds))


@given(LENGTHS, st.lists(st.integers(0, 30), min_size=1, max_size=5))
def test_the_order_does_not_depend_on_where_one_starts(lengths, steps):
    whole, jumping = (LengthOrder(np.array(lengths), recipe(3, 2), 5) for _ in range(2))
    expected = [[rows.tolist() for rows in whole.parts(step)] for step in range(31)]
    assert all([rows.tolist() for rows in jumping.parts(step)] == expected[step] for step in steps)


def test_groups_are_cut_once_and_their_order_is_drawn_in_every_epoch():
    order = LengthOrder(np.arange(40), recipe(2, 1), 0)
    epochs = [[tuple(order.parts(20 * epoch + step)[0]) for step in range(20)] for epoch in range(2)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1])


def test_ties_are_broken_by_the_seed():
    groups = [sorted(map(sorted, LengthOrder(np.ones(20, int), recipe(4, 1), seed).groups)) for seed in (0, 0, 1)]
    assert groups[0] == groups[1] != groups[2]


@given(LENGTHS, st.integers(1, 6), st.integers(1, 4))
def test_with_drop_last_an_epoch_has_whole_batches_only(lengths, group, parts):
    if len(lengths) < group * parts:
        with pytest.raises(UsageError, match="make none of"):
            LengthOrder(np.array(lengths), recipe(group, parts, drop_last=True), 0)
        return
    order = LengthOrder(np.array(lengths), recipe(group, parts, drop_last=True), 0)
    assert all([len(rows) for rows in order.parts(step)] == [group] * parts for step in range(2 * order.updates))


def test_ljspeech_has_the_updates_an_epoch_that_the_protocol_counts():
    order = LengthOrder(np.arange(12_229), recipe(6, 8), 1)
    assert (len(order.groups), order.updates) == (2_039, 255)


def test_a_last_group_that_the_devices_cannot_share_is_named():
    with pytest.raises(UsageError, match="has 1, which 2 devices cannot share; choose fewer devices, or drop_last"):
        LengthOrder(np.arange(7), recipe(2, 1), 0, processes=2)
    assert LengthOrder(np.arange(7), recipe(2, 1, drop_last=True), 0, processes=2).updates == 3


def test_a_feed_without_lengths_is_named():
    with pytest.raises(UsageError, match="the feed of the task has no lengths"):
        LengthOrder(None, recipe(2, 1), 0)
