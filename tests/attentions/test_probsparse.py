"""ProbSparse against a formula written out query by query, its choice of queries, and that nothing leaks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from tests.attentions.agreement import PATTERNS, assert_steps_continue, headwise

CAUSAL = [Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS]


def budget(factor, count):
    return min(factor * max(1, math.ceil(math.log(count))), count) if count else 0


def by_hand(layer, q, k, v, queries, keys):
    """One row and head; `queries` and `keys` list the real ones."""
    (a, b), c = layer.draws.tolist(), layer.factor
    causal_self = layer.pattern is Pattern.CAUSAL_SELF
    y, measured, chosen = [torch.zeros(v.shape[-1], dtype=v.dtype)] * len(q), [], []
    for place, i in enumerate(queries):
        seen = [j for j in keys if j <= i] if causal_self else keys
        if not seen:
            return y
        drawn = [((place + 1) * a[s] + b[s]) % (2**31 - 1) * len(seen) // (2**31 - 1) for s in range(len(a))]
        logits = [(q[i] @ k[seen[j]]).item() for j in drawn[: budget(c, len(seen))]]
        measured.append(sum(max(logits) - one for one in logits) / len(logits))
        if layer.pattern.causal:
            ahead = sum(before >= measured[-1] for before in measured[:-1])
            if ahead < c and len(chosen) < budget(c, place + 1):
                chosen.append(place)
        y[i] = v[seen].mean(dim=0)
    if not layer.pattern.causal:
        chosen = sorted(range(len(measured)), key=lambda place: -measured[place])[: budget(c, len(measured))]
    for i in (queries[place] for place in chosen):
        seen = [j for j in keys if j <= i] if causal_self else keys
        y[i] = torch.softmax(q[i] @ k[seen].T / math.sqrt(q.shape[-1]), dim=0) @ v[seen]
    return y


@settings(max_examples=6, deadline=None)
@given(n=st.integers(1, 40), m=st.integers(1, 40), factor=st.integers(1, 6), seed=st.integers(0, 99))
@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_is_the_formula_written_out_query_by_query(pattern, n, m, factor, seed):
    layer = headwise(f"probsparse(factor={factor})", pattern, seed=seed)
    m = m if pattern.cross else n
    q, k, v = (torch.randn(2, 2, t, 6, dtype=torch.float64).requires_grad_() for t in (n, m, m))
    key_mask = torch.rand(2, m) < 0.7
    query_mask = torch.rand(2, n) < 0.8 if pattern.cross else key_mask
    found = layer.attend(q, k, v, key_mask=key_mask, query_mask=query_mask)
    rows = [
        torch.stack(
            by_hand(
                layer, q[b, h], k[b, h], v[b, h], *(mask[b].nonzero()[:, 0].tolist() for mask in (query_mask, key_mask))
            )
        )
        for b in range(2)
        for h in range(2)
    ]
    expected = torch.stack(rows).unflatten(0, (2, 2))
    real = query_mask[:, None, :, None]
    torch.testing.assert_close(found * real, expected * real)
    w = torch.randn_like(found) * real
    gradients = (
        torch.autograd.grad((y * w).sum(), (q, k, v), materialize_grads=True, allow_unused=True)
        for y in (found, expected + 0 * q.sum())
    )
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("factor", [1, 5])
@pytest.mark.parametrize("pattern", CAUSAL)
def test_decoding_continues_any_prefix(pattern, factor):
    assert_steps_continue(headwise(f"probsparse(factor={factor})", pattern), n=30)


def attending(layer, q, k):
    """Which queries do not take the mean."""
    weights = layer.weights(q, k)
    uniform = (weights > 0).double()
    return (weights - uniform / uniform.sum(dim=-1, keepdim=True)).abs().amax(dim=-1) > 1e-9


def test_a_query_that_stands_out_attends_and_one_that_does_not_takes_the_mean():
    layer = headwise("probsparse(factor=1)", Pattern.NONCAUSAL_SELF)
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 2, 50, 6).double()
    q = q * 0.1
    q[:, :, [3, 17, 30, 41]] *= 1000
    assert attending(layer, q, k)[0, 0].nonzero()[:, 0].tolist() == [3, 17, 30, 41]  # ceil(ln 50) = 4


@pytest.mark.parametrize("pattern", CAUSAL)
def test_no_prefix_has_more_attending_queries_than_the_paper_allows_it(pattern):
    layer = headwise("probsparse(factor=2)", pattern)
    torch.manual_seed(0)
    q, k = torch.randn(2, 8, 2, 300, 6).double()
    rising = q * torch.arange(1, 301)[:, None]  # each query stands out more than all before it
    for queries in (q, rising):
        chosen = attending(layer, queries, k).cumsum(dim=-1)
        allowed = torch.tensor([budget(2, count) for count in range(1, 301)])
        assert (chosen <= allowed).all()
    assert (chosen[..., -1] >= allowed[-1] - 1).all()  # in causal self attention the first row is a mean anyway


def test_in_random_order_about_as_many_queries_attend_as_the_paper_chooses():
    layer = headwise("probsparse(factor=5)", Pattern.CAUSAL_CROSS)
    torch.manual_seed(0)
    q, k = torch.randn(8, 2, 1000, 6).double(), torch.randn(8, 2, 40, 6).double()
    assert 0.6 < attending(layer, q, k).sum(dim=-1).double().mean() / budget(5, 1000) <= 1


def test_later_queries_do_not_decide_about_earlier_rows():
    layer = headwise("probsparse", Pattern.CAUSAL_SELF)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 4, 2, 60, 6).double()
    before = layer.attend(q, k, v)
    for u in (q, k, v):
        u[:, :, -1] *= 100
    assert torch.equal(layer.attend(q, k, v)[:, :, :-1], before[:, :, :-1])


def test_samples_are_saved_with_the_weights():
    one, other = (headwise("probsparse", Pattern.NONCAUSAL_SELF, seed=seed) for seed in (0, 1))
    assert not torch.equal(one.draws, other.draws)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.draws, other.draws)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_weights_add_up_to_one(pattern):
    q, k = torch.randn(2, 2, 2, 50, 6).double()
    total = headwise("probsparse", pattern).weights(q, k).sum(dim=-1)
    torch.testing.assert_close(total, torch.ones_like(total))


def test_a_factor_of_nothing_is_refused():
    with pytest.raises(UsageError, match="got factor=0"):
        headwise("probsparse(factor=0)", Pattern.NONCAUSAL_SELF)


def test_padded_queries_are_left_out_of_the_weights_as_well():
    layer = headwise("probsparse(factor=1)", Pattern.NONCAUSAL_CROSS)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, n, 6, dtype=torch.float64) for n in (40, 30, 30))
    masks = {"query_mask": torch.arange(40) < torch.tensor([[40], [9]])}
    expected = layer.attend(q, k, v, **masks)
    torch.testing.assert_close((layer.weights(q, k, **masks) @ v)[1, :, :9], expected[1, :, :9])
    assert not torch.allclose((layer.weights(q, k) @ v)[1, :, :9], expected[1, :, :9])
