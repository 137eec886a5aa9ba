"""A single-precision product from three half-precision ones: no precision of the weight is lost."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.kernels.bf16x3_matmul import bf16x3_matmul, by_parts, parts_of
from longspan.kernels.flops import formulas

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@given(st.floats(-(2.0**100), 2.0**100, width=32).filter(lambda x: abs(x) > 2.0**-80 or x == 0))
def test_three_parts_of_a_number_are_all_of_it(number):
    w = torch.tensor([[number]])
    parts = parts_of(w)
    assert all(part.dtype == torch.bfloat16 for part in parts)
    assert torch.equal(sum(part.double() for part in parts), w.double())


@pytest.mark.parametrize("device", DEVICES)
@given(st.integers(1, 40), st.integers(1, 70), st.integers(1, 20))
@settings(deadline=None, max_examples=10)
def test_the_parts_make_the_product_of_single_precision(device, t, d, m):
    torch.manual_seed(t)
    x, w = torch.randn(t, d).bfloat16().to(device), torch.randn(d, m).to(device)
    for found in (bf16x3_matmul(x, w), by_parts(x, w)):
        assert found.dtype == torch.float32
        expected, size = x.double() @ w.double(), x.double().abs() @ w.double().abs()
        assert ((found - expected).abs() <= 1e-6 * size).all()


def test_numbers_of_other_types_are_multiplied_as_they_are():
    x, w = torch.randn(5, 7).double(), torch.randn(7, 3)
    torch.testing.assert_close(bf16x3_matmul(x, w), x @ w.double())
    assert bf16x3_matmul(x.float(), w).dtype == torch.float32


def test_torch_finds_nothing_wrong_with_the_operator():
    arguments = torch.randn(5, 8).bfloat16(), torch.randn(8, 3)
    torch.library.opcheck(by_parts, arguments, test_utils=("test_schema", "test_faketensor"))


def test_operations_count_one_product():
    assert formulas()[torch.ops.longspan.bf16x3_matmul]((10, 8), (8, 5)) == 2 * 10 * 8 * 5
