"""CAB's local attention: correct without a mask; with one, padding is seen and the ends of the row repeat."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import HeadwiseAttention, Pattern
from longspan.core.errors import UsageError

NS, CS = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF


def build(spec, pattern=NS) -> HeadwiseAttention:
    torch.manual_seed(0)
    layer = attentions.get(spec)(8, 2, pattern).double().eval()
    assert isinstance(layer, HeadwiseAttention)
    return layer


def slots(q, k, v, mask, places):
    """One head of one row: every position is looked up, those beyond the row at its nearest end."""
    rows = []
    for i, near in enumerate(places):
        at = [min(max(j, 0), len(k) - 1) for j in near]
        seen = [s for s, j in zip(at, near, strict=True) if not (j != s and not mask[s])]
        rows.append((q[i] @ k[seen].T / q.shape[-1] ** 0.5).softmax(dim=-1) @ v[seen])
    return torch.stack(rows)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 14), window=st.integers(1, 6), causal=st.booleans(), data=st.data())
def test_with_a_mask_it_is_every_slot_looked_up(n, window, causal, data):
    mask = torch.tensor([data.draw(st.lists(st.booleans(), min_size=n, max_size=n)) for _ in range(2)])
    q, k, v = torch.randn(3, 2, 2, n, 4, dtype=torch.float64)
    y = build(f"cab_local(window={window})", CS if causal else NS).attend(q, k, v, key_mask=mask)
    left, right = (window - 1, 0) if causal else (window, window)
    places = [range(i - left, i + right + 1) for i in range(n)]
    expected = [[slots(q[b, h], k[b, h], v[b, h], mask[b], places) for h in range(2)] for b in range(2)]
    torch.testing.assert_close(y, torch.stack([torch.stack(row) for row in expected]))


@pytest.mark.parametrize("pattern", [NS, CS])
def test_without_a_mask_it_is_local_attention(pattern):
    twin, local = build("cab_local(window=5)", pattern), build("local(window=5)", pattern)
    x = torch.randn(2, 30, 8, dtype=torch.float64)
    torch.testing.assert_close(twin(x), local(x))


def test_even_a_mask_that_hides_nothing_changes_the_ends_and_nothing_else():
    layer, x = build("cab_local(window=3)"), torch.randn(1, 20, 8, dtype=torch.float64)
    moved = (layer(x, mask=torch.ones(1, 20, dtype=torch.bool)) - layer(x)).abs().amax(dim=-1)[0] > 1e-9
    assert moved.tolist() == [True] * 3 + [False] * 14 + [True] * 3


def test_decoding_continues_the_unmasked_sequence():
    layer, x = build("cab_local(window=4)", CS), torch.randn(2, 15, 8, dtype=torch.float64)
    y, state = layer.prefill(x[:, :6])
    rows = [y]
    for t in range(6, 15):
        y_t, state = layer.step(x[:, t], state)
        rows.append(y_t[:, None])
    torch.testing.assert_close(torch.cat(rows, dim=1), layer(x))


@pytest.mark.parametrize("pattern", [NS, CS])
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 130])
def test_any_length_runs_forward_and_backward(n, pattern):
    layer, x = build("cab_local", pattern), torch.randn(2, n, 8, dtype=torch.float64, requires_grad=True)
    layer(x, mask=torch.rand(2, n) < 0.6).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_a_window_of_nothing_is_refused():
    with pytest.raises(UsageError, match="window=0"):
        build("cab_local(window=0)")
