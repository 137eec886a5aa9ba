"""The Triton kernel of the nearest direction against its law, on a GPU or in Triton's interpreter.

`test_nearest_direction.py` runs this file in a process of its own: Triton asks at its import whether to interpret.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.kernels.nearest_direction import nearest_direction, operator
from tests.kernels.device import DEVICE
from tests.kernels.graphs import check


def draw(*shape, seed=0):
    """Numbers of few digits, so that many are equal and no sum is rounded."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).float().to(DEVICE)


def assert_agrees(u, factors, offset=None):
    found, law = (nearest_direction(u, factors, offset, impl=impl) for impl in ("triton", "reference"))
    assert found.dtype == law.dtype == torch.long
    assert torch.equal(found, law)


@given(st.integers(1, 200), st.integers(1, 5), st.integers(1, 40), st.integers(0, 20), st.booleans())
@settings(deadline=None, max_examples=15)
def test_the_numbers_are_those_of_the_law_ties_included(n, m, one, other, moved):
    factors = (2 * one, 2 * other) if other else (2 * one,)
    u, offset = draw(n, m, one + other, seed=n), draw(m, one + other, seed=n + 1) if moved else None
    assert_agrees(u, factors, offset)


@pytest.mark.parametrize("factors", [(2,), (1024, 2), (16, 32)])
def test_tokens_may_have_several_axes_and_hashes_any_width(factors):
    assert_agrees(draw(2, 5, 4, sum(factors) // 2), factors)


def test_what_is_no_number_falls_into_a_bucket_that_exists():
    u = torch.full((3, 2, 8), torch.nan, device=DEVICE)
    assert (nearest_direction(u, (16,), impl="triton") < 16).all()


def test_torch_finds_nothing_wrong_with_the_operator():
    check(operator.nearest_direction, draw(5, 2, 8), [4, 12], draw(2, 8), differentiable=False)
