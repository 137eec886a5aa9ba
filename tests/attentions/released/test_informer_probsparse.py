"""Informer's ProbSparse: query by query as released, and the leak that makes it a twin."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from tests.attentions.agreement import PATTERNS, headwise


def budget(factor, count):
    return min(factor * max(1, math.ceil(math.log(count))), count)


def by_hand(layer, q, k, v):
    """One row and head."""
    n, m = len(q), len(k)
    causal = layer.pattern is Pattern.CAUSAL_SELF
    samples = layer.sampled(n, m)
    assert samples.shape == (n, budget(layer.factor, m))
    measured = []
    for i in range(n):
        logits = [(q[i] @ k[j]).item() for j in samples[i]]
        measured.append(max(logits) - sum(logits) / m)
    order, taken = sorted(range(n), key=lambda i: -measured[i]), budget(layer.factor, n)
    # With as many draws as keys, queries that drew one key only all measure 0: rounding would choose among them.
    assume(taken >= n or measured[order[taken - 1]] - measured[order[taken]] > 1e-9)
    chosen = order[:taken]
    rows = []
    for i in range(n):
        seen = range(i + 1) if causal else range(m)
        if i in chosen:
            rows.append(torch.softmax(q[i] @ k[seen].T / math.sqrt(q.shape[-1]), dim=0) @ v[seen])
        else:
            rows.append(v[seen].sum(dim=0) / (1 if causal else m))
    return torch.stack(rows)


@settings(max_examples=6, deadline=None)
@given(n=st.integers(1, 40), m=st.integers(1, 40), factor=st.integers(1, 6), seed=st.integers(0, 99))
@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_is_the_release_written_out_query_by_query(pattern, n, m, factor, seed):
    layer = headwise(f"informer_probsparse(factor={factor})", pattern, seed=seed)
    m = m if pattern.cross else n
    q, k, v = (torch.randn(2, 2, t, 6, dtype=torch.float64) for t in (n, m, m))
    expected = torch.stack([by_hand(layer, *(u[b, h] for u in (q, k, v))) for b in range(2) for h in range(2)])
    torch.testing.assert_close(layer.attend(q, k, v), expected.unflatten(0, (2, 2)))


def test_the_last_token_moves_the_past():
    layer = headwise("informer_probsparse", Pattern.CAUSAL_SELF)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 4, 2, 60, 6).double()
    before = layer.attend(q, k, v)
    for u in (q, k, v):
        u[:, :, -1] *= 100
    assert (layer.attend(q, k, v) - before)[:, :, :-1].abs().max() > 0.1


def test_cards_and_protocols_may_call_it_by_its_former_option():
    assert str(attentions.get("probsparse(released=True)")) == "informer_probsparse"
    assert str(attentions.get("probsparse(factor=3, released=True)")) == "informer_probsparse(factor=3)"


def test_a_factor_of_nothing_is_refused():
    with pytest.raises(UsageError, match="got factor=0"):
        headwise("informer_probsparse(factor=0)", Pattern.NONCAUSAL_SELF)
