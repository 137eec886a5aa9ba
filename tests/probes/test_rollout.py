"""Rollout says how the last layer is mixed from the input: shares that sum to one, whatever the layers do."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.probes.rollout import _both_labels, pixel_map, rollout


def layers(count, heads, n, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(heads, n, n, generator=generator).softmax(dim=-1) for _ in range(count)]


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 20), st.integers(0, 2**31))
def test_rows_sum_to_one(count, heads, n, seed):
    mixed = rollout(layers(count, heads, n, seed))
    torch.testing.assert_close(mixed.sum(dim=-1), torch.ones(n))
    assert mixed.min() >= 0


def test_rows_that_see_nothing_keep_themselves():
    weights = torch.rand(2, 6, 6).softmax(dim=-1)
    weights[:, 3] = 0  # as for a hidden token
    mixed = rollout([weights, weights])
    assert mixed[3, 3] == 1
    torch.testing.assert_close(mixed.sum(dim=-1), torch.ones(6))


def test_layers_are_applied_from_the_input_up():
    """In the lower layer token 0 reads 1; in the upper 2 reads 0. So 2 ends with a share of 1, and 0 with none of 2."""
    below, above = torch.eye(3)[None].clone(), torch.eye(3)[None].clone()
    below[0, 0] = torch.tensor([0.0, 1.0, 0.0])
    above[0, 2] = torch.tensor([1.0, 0.0, 0.0])
    mixed = rollout([below, above])
    assert mixed[2, 1] == 0.25
    assert mixed[0, 2] == 0


def test_the_class_token_is_no_pixel_and_is_the_query():
    mixed = rollout(layers(2, 2, 5, 0))
    torch.testing.assert_close(pixel_map(mixed, "cls"), mixed[0, 1:])
    torch.testing.assert_close(pixel_map(mixed, "first"), mixed[0])
    torch.testing.assert_close(pixel_map(mixed, "mean").sum(), torch.tensor(1.0))


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 12))
def test_the_examples_show_every_label_in_turn(labels, samples):
    rows = _both_labels(np.array(labels), samples, seed=0)
    assert len(rows) == len(set(rows)) == min(samples, len(labels))
    kinds = len(set(labels))
    assert len({labels[row] for row in rows}) == min(kinds, samples)
