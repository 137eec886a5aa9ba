"""cosFormer against the dense formula, and what a fixed maximum length promises."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from tests.attentions.agreement import PATTERNS, assert_attend_is, assert_steps_continue

LONGEST = 80
CAUSAL = [Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS]


def build(pattern, spec="cosformer", longest=LONGEST, heads=2, channels=6):
    torch.manual_seed(0)
    mechanism = attentions.get(spec)
    return mechanism(heads * channels, heads, pattern, max_length=longest, max_context=longest).double().eval()


def dense(layer):
    def reference(q, k, v, visible):
        keys = visible[:, 0, -1]  # the last row sees every real key in every pattern
        places = [keys.cumsum(dim=1) - 1] * 2
        if layer.pattern.cross:
            places[0] = torch.arange(q.shape[2]).expand(len(q), -1)
        distance = (places[0][:, :, None] - places[1][:, None, :])[:, None].double()
        w = (q.clamp(min=0) @ k.clamp(min=0).mT) * torch.cos(math.pi * distance / (2 * LONGEST)) * visible
        return w @ v / w.sum(dim=-1, keepdim=True).clamp(min=1e-6)

    return reference


@settings(max_examples=4, deadline=None)
@given(n=st.integers(1, LONGEST), m=st.integers(1, LONGEST), masked=st.booleans())
@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_is_the_dense_formula(pattern, n, m, masked):
    layer = build(pattern)
    assert_attend_is(dense(layer), layer, n=n, m=m, masked=masked)


@pytest.mark.parametrize("pattern", CAUSAL)
def test_decoding_continues_any_prefix(pattern):
    assert_steps_continue(build(pattern))


def test_tokens_alike_weigh_as_the_cosine_of_their_distance():
    layer = build(Pattern.NONCAUSAL_SELF)
    weights = layer.weights(*torch.ones(2, 1, 2, 20, 6).double())[0, 0]
    expected = torch.cos(math.pi * torch.arange(20).double() / (2 * LONGEST))
    torch.testing.assert_close(weights[0], expected / expected.sum())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_weights_are_not_negative_and_add_up_to_one(pattern):
    torch.manual_seed(0)
    q, k = torch.randn(2, 3, 2, LONGEST, 6).double()
    weights = build(pattern).weights(q, k, key_mask=torch.rand(3, LONGEST) < 0.7)
    total = weights.sum(dim=-1)
    assert weights.min() > -1e-12  # the two products of a cosine near 0 cancel up to rounding
    assert ((total - 1).abs().lt(1e-9) | total.abs().lt(1e-9)).all()
    assert (total > 0.5).double().mean() > 0.8


def test_a_query_without_a_positive_channel_gives_nothing():
    q, k, v = torch.randn(3, 1, 2, 9, 6).double()
    assert (build(Pattern.NONCAUSAL_SELF).attend(-q.abs(), k, v) == 0).all()


@pytest.mark.parametrize("pattern", CAUSAL)
def test_later_tokens_leave_a_prefix_alone(pattern):
    torch.manual_seed(0)
    x, context = torch.randn(2, 30, 12).double(), torch.randn(2, 9, 12).double() if pattern.cross else None
    layer = build(pattern)
    torch.testing.assert_close(layer(x, context)[:, :20], layer(x[:, :20], context), atol=1e-12, rtol=0)


@pytest.mark.parametrize("pattern", CAUSAL)
def test_decoding_stops_where_weights_would_turn_negative(pattern):
    layer = build(pattern, longest=10)
    x, context = torch.randn(2, 10, 12).double(), torch.randn(2, 4, 12).double() if pattern.cross else None
    mask = torch.arange(10) < torch.tensor([[7], [5]])
    _, state = layer.prefill(x, context, mask=mask)
    for _ in range(3):  # padding has not used up any positions
        _, state = layer.step(x[:, 0], state)
    with pytest.raises(UsageError, match="at most 10 tokens, got 11"):
        layer.step(x[:, 0], state)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_longer_inputs_than_built_for_are_refused(pattern):
    layer = build(pattern, longest=10)
    context = torch.randn(1, 3, 12).double() if pattern.cross else None
    with pytest.raises(UsageError, match="at most 10 tokens, got 11"):
        layer(torch.randn(1, 11, 12).double(), context)


def test_a_fixed_length_has_to_be_named():
    with pytest.raises(UsageError, match="name it: max_length\\."):
        attentions.get("cosformer")(12, 2, Pattern.CAUSAL_SELF)
    with pytest.raises(UsageError, match="name it: max_context\\."):
        attentions.get("cosformer")(12, 2, Pattern.CAUSAL_CROSS, max_length=5)


def test_nothing_can_be_divided_by_zero():
    with pytest.raises(UsageError, match="got eps=0"):
        build(Pattern.NONCAUSAL_SELF, "cosformer(eps=0.0)")
