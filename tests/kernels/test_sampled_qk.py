"""Sampled scores: the law against a loop, and the kernel against the law."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.sampled_qk import sampled_qk
from tests.kernels.in_a_process import assert_passes, needs_triton
from tests.kernels.sm90 import compiled, needs_compiler


@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 20), st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_the_law_is_a_loop_over_queries_and_samples(n, m, s, seed):
    torch.manual_seed(seed)
    q, k = torch.randn(2, 2, n, 3).double(), torch.randn(2, 2, m, 3).double()
    sample, size = torch.randint(m, (2, n, s + 1)), torch.randint(s + 2, (2, n))
    largest, apart = sampled_qk(q, k, sample, size)
    for b in range(2):
        for h in range(2):
            for i in range(n):
                scores = [(q[b, h, i] @ k[b, h, j]).item() for j in sample[b, i, : size[b, i]]]
                most = max(scores, default=float("-inf"))
                assert largest[b, h, i].item() == pytest.approx(most)
                assert apart[b, h, i].item() == pytest.approx(sum(most - one for one in scores))


@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
@pytest.mark.parametrize("dtype, c, words", [(torch.float64, 4, "half precision"), (torch.float32, 9_000, "16384")])
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(dtype, c, words):
    x, sample = torch.zeros(1, 1, 2, c, dtype=dtype), torch.zeros(1, 2, 2, dtype=torch.long)
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        sampled_qk(x, x, sample, sample[..., 0], impl="triton")


@needs_triton
def test_the_kernel_follows_the_law():
    assert_passes("sampled_qk_kernel.py")


@needs_compiler
@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_it_compiles_for_a_large_gpu(kind):
    from longspan.kernels.sampled_qk import triton as kernels

    kernel, constants = kernels._sampled_qk, kernels.launch(50, 64)
    kinds = {"q": f"*{kind}", "k": f"*{kind}", "sample": "*i32", "size": "*i32", "largest": "*fp32", "apart": "*fp32"}
    assert compiled(kernel, constants, kinds, otherwise="i32").asm["ptx"]
