"""XCiT against the formula with normalised channels, prefix by prefix where it is causal."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.attentions import Pattern
from tests.attentions.agreement import assert_attend_is, assert_steps_continue, headwise

NS, CS = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF


def dense(layer):
    def one_moment(q, k, v, real):
        """Outputs at all tokens, from the covariance of the real ones."""
        q, k = (F.normalize(x * real[:, None, :, None], dim=2) for x in (q, k))
        return v @ (layer.temperature * q.mT @ k).softmax(dim=-1).mT

    def reference(q, k, v, visible):
        rows = [one_moment(q, k, v, visible[:, 0, i])[:, :, i] for i in range(q.shape[2])]
        real = visible[:, 0].diagonal(dim1=1, dim2=2)
        return torch.stack(rows, dim=2) * real[:, None, :, None]

    return reference


@settings(max_examples=4, deadline=None)
@given(n=st.integers(1, 20), masked=st.booleans())
@pytest.mark.parametrize("pattern", [NS, CS])
def test_it_is_the_dense_formula(pattern, n, masked):
    layer = headwise("xcit", pattern)
    torch.nn.init.uniform_(layer.temperature, 0.5, 2)
    assert_attend_is(dense(layer), layer, n=n, masked=masked)


def test_it_is_the_dense_formula_beyond_a_chunk():
    layer = headwise("xcit", CS)
    assert_attend_is(dense(layer), layer, n=70)


def test_decoding_continues_any_prefix():
    assert_steps_continue(headwise("xcit", CS))


def test_the_last_causal_row_is_the_last_row_of_the_whole_sequence():
    q, k, v = torch.randn(3, 2, 2, 130, 6, dtype=torch.float64)
    torch.testing.assert_close(*(headwise("xcit", p).attend(q, k, v)[:, :, -1] for p in (NS, CS)))


def test_the_temperature_is_not_decayed():
    assert headwise("xcit", NS).temperature.optim == {"weight_decay": 0.0}
