"""The nearest direction: the law against argmax, and the kernel against the law."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.nearest_direction import nearest_direction
from tests.kernels.in_a_process import assert_passes, needs_triton
from tests.kernels.sm90 import compiled, needs_compiler


@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_the_law_is_argmax_of_what_is_written_out(n, one, other, seed):
    generator = torch.Generator().manual_seed(seed)
    u = torch.randint(-2, 3, (n, 2, one + other), generator=generator).double()  # so that many are equal
    offset = torch.randint(-2, 3, (2, one + other), generator=generator).double()
    first, second = (u + offset).split([one, other], dim=-1)
    first, second = (torch.cat([part, -part], dim=-1).argmax(dim=-1) for part in (first, second))
    assert torch.equal(nearest_direction(u, (2 * one, 2 * other), offset), 2 * other * first + second)


@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
@pytest.mark.parametrize("dtype, half, words", [(torch.float64, 4, "takes float32"), (torch.float32, 5_000, "4096")])
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(dtype, half, words):
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        nearest_direction(torch.zeros(1, 1, half, dtype=dtype), (2 * half,), impl="triton")


@needs_triton
def test_the_kernel_follows_the_law():
    assert_passes("nearest_direction_kernel.py")


@needs_compiler
@pytest.mark.parametrize("factors", [(16, 32), (128,)])
def test_it_compiles_for_a_large_gpu(factors):
    from longspan.kernels.nearest_direction import triton as kernels

    kernel, half = kernels._nearest_direction, sum(factors) // 2
    T, H = kernels.rows_of(half)
    constants = {"half": half, "one": factors[0], "other": (*factors, 0)[1], "T": T, "H": H, "OFFSET": True}
    kinds = {"found": "*i64", "rows": "i32", "m": "i32"}
    assert compiled(kernel, constants, kinds, otherwise="*fp32").asm["ptx"]
