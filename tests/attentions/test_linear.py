"""Linear attention against the dense formula."""

import pytest
import torch
import torch.nn.functional as F

from longspan.attentions import Pattern
from tests.attentions.agreement import PATTERNS, assert_attend_is, assert_steps_continue, headwise


def dense(q, k, v, visible):
    weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT) * visible
    return weights @ v / (weights.sum(dim=-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_is_the_dense_formula(pattern, masked):
    assert_attend_is(dense, headwise("linear", pattern), masked=masked)


@pytest.mark.parametrize("pattern", [Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS])
def test_decoding_continues_any_prefix(pattern):
    assert_steps_continue(headwise("linear", pattern))


def test_the_state_does_not_grow_with_the_prefix():
    layer = headwise("linear", Pattern.CAUSAL_SELF)
    sizes = {layer.prefill(torch.randn(1, n, 12).double())[1].nbytes for n in (0, 1, 50)}
    assert sizes == {2 * 6 * (6 + 1) * 8}
