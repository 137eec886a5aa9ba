"""Long convolution: the Fourier transform gives what the sum over all pairs gives."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.kernels.long_convolution import fast_length, long_convolution


@pytest.mark.parametrize("both_sides", [False, True])
@pytest.mark.parametrize("length", [1, 2, 63, 200])
def test_the_transform_agrees_with_the_sum_in_outputs_and_gradients(length, both_sides):
    torch.manual_seed(0)
    inputs = [
        torch.randn(*shape, length, dtype=torch.float64, requires_grad=True) for shape in [(2, 1, 3), (4, 3), (4, 3)]
    ]
    inputs = inputs if both_sides else inputs[:2]
    fast, slow = long_convolution(*inputs), long_convolution(*inputs, impl="reference")
    torch.testing.assert_close(fast, slow)
    cotangent = torch.randn_like(slow)
    found, expected = (torch.autograd.grad((y * cotangent).sum(), inputs) for y in (fast, slow))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_unit_reverse_kernel_returns_the_next_token():
    u = torch.tensor([1.0, 2.0, 3.0, 4.0])
    next_token = long_convolution(u, torch.zeros(4), torch.tensor([1.0, 0.0, 0.0, 0.0]))
    torch.testing.assert_close(next_token, torch.tensor([2.0, 3.0, 4.0, 0.0]))


@given(st.integers(1, 10**6))
def test_a_fast_length_suffices_and_wastes_at_most_a_third(least):
    length = fast_length(least)
    assert least <= length <= max(least, least * 4 / 3)
    while length % 2 == 0:
        length //= 2
    assert length in (1, 3, 5)
