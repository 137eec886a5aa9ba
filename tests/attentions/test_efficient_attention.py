"""Efficient attention against the dense formula: a softmax over positions for each channel of the keys."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.attentions import Pattern
from tests.attentions.agreement import PATTERNS, assert_attend_is, assert_steps_continue, headwise

CAUSAL = [Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS]


def dense(q, k, v, visible):
    scores = k.mT[:, :, None].masked_fill(~visible[..., None, :], -torch.inf)  # b h n c m
    maps = scores.softmax(dim=-1).nan_to_num()
    return torch.einsum("bhnc, bhncm, bhme -> bhne", q.softmax(dim=-1), maps, v)


@settings(max_examples=4, deadline=None)
@given(n=st.integers(1, 70), m=st.integers(1, 70), masked=st.booleans())
@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_is_the_dense_formula(pattern, n, m, masked):
    assert_attend_is(dense, headwise("efficient_attention", pattern), n=n, m=m, masked=masked)


@pytest.mark.parametrize("pattern", CAUSAL)
def test_decoding_continues_any_prefix(pattern):
    assert_steps_continue(headwise("efficient_attention", pattern))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_weights_are_not_negative_and_add_up_to_one(pattern):
    layer = headwise("efficient_attention", pattern)
    weights = layer.weights(*torch.randn(2, 1, 2, 20, 6).double())
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(1, 2, 20).double())


def test_the_last_causal_row_is_the_last_row_of_the_whole_sequence():
    q, k, v = torch.randn(3, 2, 2, 50, 6, dtype=torch.float64)
    causal, whole = (headwise("efficient_attention", p) for p in (Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_SELF))
    torch.testing.assert_close(causal.attend(q, k, v)[:, :, -1], whole.attend(q, k, v)[:, :, -1])
