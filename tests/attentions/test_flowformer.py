"""Flowformer against dense flows, and what conservation means."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.attentions import Pattern
from longspan.core.errors import UnsupportedPattern, UsageError
from tests.attentions.agreement import assert_steps_continue, headwise, random_mask

NS, CS, NC = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_CROSS


def dense(q, k, v, eps=1e-6, clamp=1.0):
    """One row without padding: q [h n c], with the dense matrix of flows."""

    def flow(one, other):
        return ((one + eps) * (other.sum(dim=1, keepdim=True) + eps)).sum(dim=-1, keepdim=True)

    q, k, n, m = q.sigmoid(), k.sigmoid(), q.shape[1], k.shape[1]
    incoming, outgoing = flow(q, k), flow(k, q)
    share = m * flow(k, q / incoming).clamp(-clamp, clamp).softmax(dim=1)
    return (flow(q, k / outgoing) * n / m).sigmoid() * (q @ k.mT / incoming) @ (share * v)


@settings(max_examples=4, deadline=None)
@given(n=st.integers(4, 40), m=st.integers(4, 40))
@pytest.mark.parametrize("pattern", [NS, NC])
def test_a_padded_row_is_the_dense_formula_of_its_tokens(pattern, n, m):
    layer = headwise("flowformer", pattern)
    m = m if pattern.cross else n
    q, k, v = (torch.randn(3, 2, t, 6, dtype=torch.float64) for t in (n, m, m))
    key_mask = random_mask(m)
    query_mask = random_mask(n) if pattern.cross else key_mask
    y = layer.attend(q, k, v, key_mask=key_mask, query_mask=query_mask)
    for row in range(2):
        of_q, of_k = query_mask[row], key_mask[row]
        if of_q.any() and of_k.any():
            expected = dense(q[row, :, of_q], k[row, :, of_k], v[row, :, of_k])
            torch.testing.assert_close(y[row, :, of_q], expected)
    assert (y[2] == 0).all(), "nothing to see"


def test_decoding_continues_any_prefix():
    assert_steps_continue(headwise("flowformer", CS))


def test_the_first_causal_row_is_a_sequence_of_one_token():
    q, k, v = torch.randn(3, 2, 2, 5, 6, dtype=torch.float64)
    causal, whole = (headwise("flowformer", pattern) for pattern in (CS, NS))
    one = whole.attend(q[:, :, :1], k[:, :, :1], v[:, :, :1])
    torch.testing.assert_close(causal.attend(q, k, v)[:, :, :1], one)


def test_keys_of_one_kind_give_a_part_of_the_mean_of_values():
    """All flows are equal: no key wins, and the output is sigmoid(1) times the mean."""
    layer = headwise("flowformer", NS)
    q, k = torch.zeros(2, 1, 2, 9, 6, dtype=torch.float64)
    v = torch.randn(1, 2, 9, 6, dtype=torch.float64)
    expected = torch.tensor(1.0).double().sigmoid() * v.mean(dim=2, keepdim=True).expand_as(v)
    torch.testing.assert_close(layer.attend(q, k, v), expected, rtol=1e-5, atol=1e-5)  # eps is added to every flow


def test_causal_cross_attention_is_refused():
    with pytest.raises(UnsupportedPattern):
        headwise("flowformer", Pattern.CAUSAL_CROSS)


@pytest.mark.parametrize("option", ["clamp=0.0", "eps=0.0"])
def test_options_that_are_not_positive_are_refused(option):
    with pytest.raises(UsageError, match="needs a positive clamp and eps"):
        headwise(f"flowformer({option})", NS)


def test_the_largest_clamp_is_within_the_range_of_single_precision():
    layer = headwise("flowformer(clamp=50)", NS)
    q, k, v = (3 * torch.randn(1, 2, 200, 6) for _ in range(3))
    q.requires_grad_()
    y = layer.attend(q, k, v)
    expected = dense(q[0].double(), k[0].double(), v[0].double(), clamp=50)
    torch.testing.assert_close(y[0].double(), expected, rtol=1e-4, atol=1e-4)
    (found,) = torch.autograd.grad(y.sum(), q)
    assert found.isfinite().all()


def test_a_clamp_beyond_the_range_of_single_precision_is_refused():
    """exp(-100) is 0 there, and gradients were NaN."""
    with pytest.raises(UsageError, match="choose at most 50"):
        headwise("flowformer(clamp=100.0)", NS)
