"""Induced set attention against two dense softmaxes, prefix by prefix where it is causal."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from tests.attentions.agreement import PATTERNS, assert_attend_is, assert_steps_continue, headwise

CAUSAL = [Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS]


def dense(layer):
    points = layer.inducing.unflatten(1, (layer.heads, -1)).transpose(0, 1)

    def reference(q, k, v, visible):
        logits = (points @ k.mT / k.shape[-1] ** 0.5)[:, :, None].masked_fill(~visible[..., None, :], -torch.inf)
        pools = logits.softmax(dim=-1).nan_to_num() @ v[:, :, None]  # b h n r c: the pools each query sees
        keys, values = (pools @ maps[:, None].mT for maps in (layer.key_map, layer.value_map))
        scores = torch.einsum("bhnc,bhnrc->bhnr", q, keys) / q.shape[-1] ** 0.5
        return torch.einsum("bhnr,bhnrc->bhnc", scores.softmax(dim=-1), values)

    return reference


@settings(max_examples=3, deadline=None)
@given(n=st.integers(1, 40), m=st.integers(1, 40), points=st.integers(1, 9), masked=st.booleans())
@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_is_the_dense_formula(pattern, n, m, points, masked):
    layer = headwise(f"set_transformer(points={points})", pattern)
    assert_attend_is(dense(layer), layer, n=n, m=m, masked=masked)


def test_the_points_of_a_new_layer_score_keys_as_differently_as_queries_do():
    layer = attentions.get("set_transformer")(64, 2, Pattern.NONCAUSAL_SELF)
    scores = dict(layer.named_parameters())["inducing"][:, :32] @ torch.randn(200, 32).mT / 32**0.5
    assert 0.7 < scores.std(dim=1).mean() < 1.3  # otherwise all pools start out equal, and smoke ListOps is not learnt


@pytest.mark.parametrize("pattern", CAUSAL)
def test_decoding_continues_any_prefix(pattern):
    assert_steps_continue(headwise("set_transformer(points=5)", pattern))


def test_the_order_of_keys_does_not_matter():
    layer = headwise("set_transformer", Pattern.NONCAUSAL_CROSS)
    q, k, v = torch.randn(3, 2, 2, 9, 6, dtype=torch.float64)
    torch.testing.assert_close(layer.attend(q, k, v), layer.attend(q, k.flip(2), v.flip(2)))


def test_no_inducing_point_is_refused():
    with pytest.raises(UsageError, match="at least one inducing point, got points=0"):
        headwise("set_transformer(points=0)", Pattern.NONCAUSAL_SELF)
