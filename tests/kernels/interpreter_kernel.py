"""The sped-up interpreter computes and refuses the same as Triton's own; `test_interpreted.py` runs this file."""

import pytest
import torch
import triton
import triton.language as tl

from tests.kernels.device import DEVICE

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="a GPU does without an interpreter")


@triton.jit
def _products(x, y, out, N: tl.constexpr):
    at = tl.arange(0, N)
    rows = tl.load(x + at)[:, None]
    tl.store(out + at[:, None] * N + at[None, :], rows * tl.load(y + at)[None, :])


@triton.jit
def _misfit(x, out):
    tl.store(out + tl.arange(0, 4), tl.load(x + tl.arange(0, 4)) + tl.load(x + tl.arange(0, 8)))


@triton.jit
def _odd(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, 4), tl.zeros([N], tl.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.int64])
def test_rows_and_columns_are_broadcast(dtype):
    x, y = torch.arange(8).to(dtype), torch.arange(8).to(dtype) - 3
    out = torch.empty(8, 8, dtype=dtype)
    _products[(1,)](x, y, out, N=8)
    assert torch.equal(out, x[:, None] * y)


def test_integers_that_overflow_are_refused():
    x, out = torch.full((4,), 2**20, dtype=torch.int32), torch.empty(4, 4, dtype=torch.int32)
    with pytest.raises(Exception, match="int32 overflow detected for operation mul"):
        _products[(1,)](x, x, out, N=4)


def test_blocks_of_other_sizes_are_refused():
    with pytest.raises(Exception, match="incompatible dimensions"):
        _misfit[(1,)](torch.zeros(8), torch.zeros(8))


def test_a_size_that_is_no_power_of_two_is_refused():
    with pytest.raises(Exception, match="power of 2"):
        _odd[(1,)](torch.zeros(4), N=3)
