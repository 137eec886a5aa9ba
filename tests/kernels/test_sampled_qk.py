"""Sampled scores: the reference against a loop, and the kernel against the reference."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.sampled_qk import PRIME, draw_keys, hash_coefficients, log_budget, log_budgets, sampled_qk
from tests.kernels.sm90 import compiled, needs_compiler


@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 20), st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_the_reference_is_a_loop_over_queries_and_samples(n, m, s, seed):
    torch.manual_seed(seed)
    q, k = torch.randn(2, 2, n, 3).double(), torch.randn(2, 2, m, 3).double()
    sample, size = torch.randint(m, (2, n, s + 1)), torch.randint(s + 2, (2, n))
    largest, gap = sampled_qk(q, k, sample, size)
    for b in range(2):
        for h in range(2):
            for i in range(n):
                scores = [(q[b, h, i] @ k[b, h, j]).item() for j in sample[b, i, : size[b, i]]]
                most = max(scores, default=float("-inf"))
                assert largest[b, h, i].item() == pytest.approx(most)
                assert gap[b, h, i].item() == pytest.approx(sum(most - one for one in scores))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, PRIME), st.integers(1, 9))
def test_one_count_and_many_counts_have_the_same_budget(count, factor):
    near = [count, *(int(math.exp(power)) + more for power in range(22) for more in (0, 1))]
    found = [log_budget(factor, one) for one in near]
    assert log_budgets(factor, torch.tensor(near)).tolist() == found
    assert found == [min(factor * max(1, math.ceil(math.log(one))), one) if one else 0 for one in near]


def test_draws_are_spread_evenly_over_the_keys_there_are():
    torch.manual_seed(0)
    drawn = draw_keys(hash_coefficients(200), torch.arange(20)[None], torch.full((1, 20), 10))
    assert drawn.min() >= 0
    assert drawn.max() < 10
    for one in drawn[0]:
        assert (one.bincount(minlength=10) - 440).abs().max() < 5 * 20  # five standard deviations
    together = (drawn[0, :-1] * 10 + drawn[0, 1:]).flatten().bincount(minlength=100)  # by neighbouring queries
    assert (together - 836).abs().max() < 5 * 29


@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
@pytest.mark.parametrize("dtype, c, words", [(torch.float64, 4, "half precision"), (torch.float32, 9_000, "16384")])
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(dtype, c, words):
    x, sample = torch.zeros(1, 1, 2, c, dtype=dtype), torch.zeros(1, 2, 2, dtype=torch.long)
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        sampled_qk(x, x, sample, sample[..., 0], impl="triton")


@needs_compiler
@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_it_compiles_for_a_large_gpu(kind):
    from longspan.kernels.sampled_qk import triton as kernels

    kernel, constants = kernels.sampled_qk, kernels.launch(50, 64)
    kinds = {"q": f"*{kind}", "k": f"*{kind}", "sample": "*i32", "size": "*i32", "largest": "*fp32", "gap": "*fp32"}
    assert compiled(kernel, constants, kinds, otherwise="i32").asm["ptx"]
