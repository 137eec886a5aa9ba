"""Longformer: a window, a few global tokens, and what their own projections change."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.backbones.encoder_classifier import initialise
from longspan.core.errors import UsageError
from tests.attentions.agreement import headwise
from tests.attentions.allowed import assert_same, assert_steps_continue, attention, holes, pairs, tensors

PATTERNS = [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF]


def first_real(mask, row, count, n):
    """The positions of the global tokens of a row."""
    real = range(n) if mask is None else [j for j in range(n) if mask[row, j]]
    return set(list(real)[:count])


@given(
    n=st.integers(1, 26),
    reach=st.integers(1, 9),
    count=st.integers(0, 4),
    own=st.booleans(),
    pattern=st.sampled_from(PATTERNS),
    seed=st.integers(0, 1_000),
)
@settings(deadline=None, max_examples=30)
def test_outputs_gradients_and_weights_follow_the_pattern(n, reach, count, own, pattern, seed):
    projections = "own" if own else "shared"
    spec = f"longformer(window={2 * reach}, global_tokens={count}, projections={projections})"
    layer = headwise(spec, pattern, channels=4)
    mask, leaves = holes(2, n, seed), tensors(2, 2, n, 8 if own else 4, seed)
    (q, q_global), (k, k_global), (v, v_global) = (u.split(4, dim=-1) if own else (u, u) for u in leaves)
    special = [first_real(mask, row, count, n) for row in range(2)]

    def past(i, j):
        return j <= i or not pattern.causal

    near = pairs(lambda r, _, i, j: past(i, j) and (abs(i - j) <= reach or j in special[r]), 2, 2, n, mask)
    everything = pairs(lambda r, _, i, j: past(i, j), 2, 2, n, mask)
    rows = pairs(lambda r, _, i, j: i in special[r], 2, 2, n)
    ordinary, globally = attention(q, k, v, near), attention(q_global, k_global, v_global, everything)
    expected = torch.where(rows[..., :1], globally, ordinary)
    assert_same(layer.attend(*leaves, key_mask=mask), expected, leaves)
    weights = layer.weights(*leaves[:2], key_mask=mask)
    assert not weights[~torch.where(rows, everything, near)].any()
    torch.testing.assert_close(torch.where(rows[..., :1], weights @ v_global, weights @ v), expected)


@pytest.mark.parametrize("projections", ["shared", "own"])
@pytest.mark.parametrize("window, count", [(4, 0), (4, 1), (6, 3), (64, 2), (2, 20)])
def test_decoding_continues_any_prefix(projections, window, count):
    spec = f"longformer(window={window}, global_tokens={count}, projections={projections})"
    layer = headwise(spec, Pattern.CAUSAL_SELF)
    for projection in layer.projections():  # separate projections are initialised as copies, which would hide a mistake
        torch.nn.init.normal_(projection.weight)
    assert_steps_continue(layer, n=17)


def test_the_decoding_state_does_not_grow():
    layer = headwise("longformer(window=6, global_tokens=2)", Pattern.CAUSAL_SELF)
    _, state = layer.prefill(torch.randn(2, 1, 12, dtype=torch.float64))
    before = state.nbytes
    for _ in range(9):
        _, state = layer.step(torch.randn(2, 12, dtype=torch.float64), state)
    assert state.nbytes == before


def test_one_global_token_carries_news_across_the_row():
    x = torch.randn(1, 60, 12, dtype=torch.float64)
    changed = x.clone()
    changed[0, 59] += 1
    for count, hears in ((0, False), (1, True)):
        layer = headwise(f"longformer(window=4, global_tokens={count})", Pattern.NONCAUSAL_SELF)
        moved = (layer(changed) - layer(x)).abs().amax(dim=-1)[0] > 1e-9
        assert bool(moved[0]) is hears
        assert not moved[1:57].any()
        assert moved[57:].all()


def test_own_projections_begin_as_copies_and_are_initialised_with_the_others():
    layer = attentions.get("longformer(projections=own)")(12, 2, Pattern.NONCAUSAL_SELF)
    shared = attentions.get("longformer")(12, 2, Pattern.NONCAUSAL_SELF)
    assert torch.equal(layer.query.weight, layer.query.globally.weight)
    assert torch.equal(layer.value.bias, layer.value.globally.bias)
    shared.load_state_dict({name: value for name, value in layer.state_dict().items() if "globally" not in name})
    x = torch.randn(2, 30, 12)
    torch.testing.assert_close(layer(x), shared(x))
    assert len(list(layer.projections())) == 7
    initialise(layer)
    assert not torch.equal(layer.query.weight, layer.query.globally.weight)
    assert not layer.key.globally.bias.any()
    more = sum(p.numel() for p in layer.parameters()) - sum(p.numel() for p in shared.parameters())
    assert more == 3 * (12 * 12 + 12)


@pytest.mark.parametrize("spec", ["window=0", "window=5", "global_tokens=-1"])
def test_impossible_options_are_refused(spec):
    with pytest.raises(UsageError, match="got"):
        headwise(f"longformer({spec})", Pattern.CAUSAL_SELF)
