"""Strided attention: rows and columns of a grid in one softmax, compared with the whole matrix."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.kernels.strided import strided
from tests.attentions.allowed import assert_same, holes, tensors


@given(st.integers(1, 50), st.integers(1, 60), st.booleans(), st.booleans(), st.integers(0, 1_000))
@settings(deadline=None, max_examples=50)
def test_the_grid_follows_the_law_in_outputs_and_gradients(n, stride, near, causal, seed):
    q, k, v = leaves = tensors(2, 2, n, seed=seed)
    rules = {"stride": stride, "near": near, "causal": causal, "key_mask": holes(2, n, seed)}
    assert_same(strided(q, k, v, **rules), strided(q, k, v, **rules, impl="reference"), leaves)


def test_dropout_acts_on_the_weights():
    q, k, v = tensors(1, 2, 30)
    torch.manual_seed(0)
    assert not torch.equal(strided(q, k, v, stride=5, dropout=0.5), strided(q, k, v, stride=5, dropout=0.5))
