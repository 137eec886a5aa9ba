"""Scatterbrain against dense weights in every pattern: exact on its support, random features elsewhere."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.attentions import Pattern
from longspan.attentions.scatterbrain import Scatterbrain
from longspan.core.errors import UsageError
from tests.attentions.agreement import PATTERNS, assert_attend_is, assert_steps_continue, headwise

CAUSAL = [Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS]
SUPPORTS = [(pattern, "lsh" if pattern.cross else "window") for pattern in PATTERNS] + [(Pattern.NONCAUSAL_SELF, "lsh")]


def estimate(layer, q, k):
    """phi(q) . phi(k) of all pairs: the mean of the exponentials over the rows of W and their negatives."""
    w = torch.cat([layer.projection, -layer.projection])
    q, k = (x / layer.head_dim**0.25 for x in (q, k))
    logs = ((q[:, :, :, None] + k[:, :, None]) @ w.mT).exp().mean(dim=-1)
    return logs * (-(q.square().sum(dim=-1)[..., None] + k.square().sum(dim=-1)[:, :, None]) / 2).exp()


def matrix(layer, q, k):
    w = layer.weights(q, k)
    assert w is not None
    return w


def support(layer, q, k, visible):
    """S as a matrix."""
    there = visible.any(dim=2)[:, 0] if visible.shape[2] else visible[:, 0, 0]
    if layer.support == "lsh":
        same = layer._hash(q)[..., None] == layer._hash(k)[:, :, None]
        real = there[:, None, None]
        in_bucket = (layer._hash(k)[..., None] == layer._hash(k)[:, :, None]) & there[:, None, None]
        rank = in_bucket.tril().sum(dim=-1)[:, :, None]  # of each key among the real keys of its bucket, counted from 1
        return same & real & (rank <= layer.window)
    rank = there.cumsum(dim=1)
    lag = (rank[:, None] - rank[..., None])[:, None]
    left = layer.window - 1 if layer.pattern.causal else layer.window // 2
    return visible & (lag >= -left) & (lag <= layer.window - 1 - left)


@settings(max_examples=5, deadline=None)
@given(n=st.integers(1, 200), m=st.integers(1, 90), window=st.integers(1, 9), buckets=st.sampled_from([1, 4]))
@pytest.mark.parametrize("pattern, kind", SUPPORTS)
def test_it_is_the_dense_formula(pattern, kind, n, m, window, buckets):
    layer = headwise(f"scatterbrain(window={window}, features=8, buckets={buckets}, support={kind})", pattern)

    def dense(q, k, v, visible):
        near = support(layer, q, k, visible)
        w = torch.where(near, (q @ k.mT / layer.head_dim**0.5).exp(), estimate(layer, q, k)) * visible
        y = w @ v / torch.where(visible.any(dim=-1, keepdim=True), w.sum(dim=-1, keepdim=True), 1)
        if layer.support == "window" and not visible.all():  # a padded query gives 0
            real = visible.diagonal(dim1=-2, dim2=-1)[..., None]
            return y * real
        return y

    assert_attend_is(dense, layer, n=n, m=m, masked=n % 2 == 0)


@pytest.mark.parametrize("options", ["", "(window=3, features=4, buckets=4)", "(buckets=1)", "(scale=0.2)"])
@pytest.mark.parametrize("pattern", CAUSAL)
def test_decoding_continues_any_prefix(options, pattern):
    assert_steps_continue(headwise(f"scatterbrain{options}", pattern))


def test_an_even_window_reaches_further_to_the_left():
    layer = headwise("scatterbrain(window=4)", Pattern.NONCAUSAL_SELF, heads=1)
    q, k = torch.randn(2, 1, 1, 12, 6).double()
    w, scores = matrix(layer, q, k)[0, 0, 5], (q @ k.mT / 6**0.5)[0, 0, 5]
    exact = torch.isclose(w / w[5], (scores - scores[5]).exp(), rtol=1e-9)
    assert exact.nonzero().flatten().tolist() == [3, 4, 5, 6]


def test_weights_off_the_support_tend_to_those_of_softmax_attention_with_many_features():
    q, k = torch.randn(2, 1, 1, 9, 6).double() / 2
    exact = (q @ k.mT / 6**0.5).softmax(dim=-1)
    apart = {}
    for features in (12, 12_000):
        layer = headwise(f"scatterbrain(window=1, features={features})", Pattern.NONCAUSAL_SELF, heads=1)
        apart[features] = (matrix(layer, q, k) - exact).norm()
    assert apart[12_000] < apart[12] / 8  # a thousand times as many: errors about 32 times as small


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_weight_is_negative_where_features_on_the_support_outweigh_all_others(pattern):
    """Subtracting large estimates would leave rounding errors of either sign."""
    layer = headwise("scatterbrain(window=4, features=4, buckets=4)", pattern, heads=1).float()
    q, k = torch.randn(2, 2, 1, 40, 6) * 6
    w = matrix(layer, q, k)
    assert (w >= 0).all()
    torch.testing.assert_close(w.sum(dim=-1), torch.ones(2, 1, 40))
    torch.testing.assert_close(w.double(), matrix(layer.double(), q.double(), k.double()), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("pattern", CAUSAL)
def test_a_huge_last_token_changes_nothing_before_it(pattern):
    layer = headwise("scatterbrain(window=4, buckets=4)", pattern)
    x, context = torch.randn(2, 1, 90, 12).double()
    huge = torch.cat([x[:, :-1], 1e3 * x[:, -1:]], dim=1)
    more = {"context": context} if pattern.cross else {}
    torch.testing.assert_close(layer(huge, **more)[:, :-1], layer(x, **more)[:, :-1])


def test_dropout_acts_on_exact_weights_alone():
    torch.manual_seed(0)
    layer = headwise("scatterbrain(window=3)", Pattern.NONCAUSAL_SELF, heads=1)
    layer.dropout = 0.5
    q, k = torch.randn(2, 1, 1, 20, 6).double()
    whole, dropped = matrix(layer, q, k)[0, 0], matrix(layer.train(), q, k)[0, 0]
    i, j = torch.arange(20)[:, None], torch.arange(20)
    near = (i - j).abs() <= 1
    torch.testing.assert_close(dropped[~near], whole[~near])
    assert ((dropped[near] == 0) | torch.isclose(dropped[near], 2 * whole[near])).all()


@pytest.mark.parametrize(
    "options, pattern",
    [
        ("features=7", Pattern.NONCAUSAL_SELF),
        ("window=0", Pattern.NONCAUSAL_SELF),
        ("scale=0.0", Pattern.NONCAUSAL_SELF),
        ("buckets=7", Pattern.NONCAUSAL_CROSS),
        ("support=window", Pattern.NONCAUSAL_CROSS),
        ("support=lsh", Pattern.CAUSAL_SELF),
    ],
)
def test_options_without_a_meaning_are_refused(options, pattern):
    with pytest.raises(UsageError):
        headwise(f"scatterbrain({options})", pattern)


def test_the_state_of_causal_self_attention_does_not_grow():
    layer = headwise("scatterbrain(window=8)", Pattern.CAUSAL_SELF)
    assert isinstance(layer, Scatterbrain)
    sizes = {layer.prefill(torch.randn(1, n, 12).double())[1].nbytes for n in (0, 20, 100)}
    assert len(sizes) == 1
