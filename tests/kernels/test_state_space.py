"""Diagonal state spaces: powers in blocks give what the recurrence gives, token by token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.kernels.state_space import filter_tokens, gently_trained, impulse_response, last_state


def dynamics(d=3, n=4, channels=2):
    """Logarithms with a negative real part, and readings."""
    log_a = torch.complex(-torch.rand(d, n, dtype=torch.float64), torch.randn(d, n, dtype=torch.float64))
    return log_a.requires_grad_(), torch.randn(channels, d, n, dtype=torch.complex128, requires_grad=True)


def assert_agree(law, fast, leaves):
    torch.testing.assert_close(fast, law)
    w = torch.randn_like(law)
    gradients = (torch.autograd.grad((y * w).sum().real, leaves, materialize_grads=True) for y in (fast, law))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("length", [1, 2, 5, 63, 64, 65])
def test_the_response_to_a_pulse_is_that_of_the_recurrence(length):
    torch.manual_seed(0)
    log_a, c = dynamics()
    found = (impulse_response(log_a, c, length, impl=impl) for impl in ("reference", "auto"))
    assert_agree(*found, (log_a, c))


@given(st.lists(st.integers(0, 25), max_size=3), st.integers(0, 2**31))
@settings(deadline=None, max_examples=12)
def test_the_last_state_is_that_of_each_row_at_its_end(lengths, seed):
    torch.manual_seed(seed)
    log_a, _ = dynamics()
    lengths = [*lengths, 3]
    u = torch.randn(len(lengths), max(lengths) + 1, 3, dtype=torch.float64, requires_grad=True)
    found = (last_state(log_a, u, torch.tensor(lengths), impl=impl) for impl in ("reference", "auto"))
    assert_agree(*found, (log_a, u))


def test_nothing_leaves_an_empty_state():
    log_a, _ = dynamics()
    assert not last_state(log_a, torch.zeros(2, 0, 3), torch.zeros(2, dtype=torch.long)).any()


@given(st.integers(1, 40), st.booleans(), st.integers(0, 2**31))
@settings(deadline=None, max_examples=12)
def test_hidden_tokens_are_not_time(length, both_sides, seed):
    torch.manual_seed(seed)
    x = torch.randn(3, length, 4, dtype=torch.float64, requires_grad=True)
    kernel, reverse = (torch.randn(2, 4, length, dtype=torch.float64, requires_grad=True) for _ in range(2))
    skip = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(3, length) < torch.tensor([[1.0], [0.6], [0.0]])
    back = reverse if both_sides else None
    found = (filter_tokens(x, kernel, back, skip, mask, impl=impl) for impl in ("reference", "auto"))
    assert_agree(*found, (x, kernel, skip))


def test_a_gently_trained_parameter_says_so():
    assert gently_trained(torch.zeros(2)).optim == {"weight_decay": 0.0, "max_learning_rate": 1e-3}
