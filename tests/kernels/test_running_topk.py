"""Running top-k: the reference against a scan along the row, and the kernel against the reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.flops import formulas
from longspan.kernels.running_topk import running_topk
from tests.kernels.sm90 import compiled, needs_compiler


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.integers(1, 4), st.integers(1, 3))
def test_the_reference_is_a_walk_along_the_row(numbers, k, share):
    budget = [1 + i // share for i in range(len(numbers))]
    chosen = []
    for i, x in enumerate(numbers):
        candidate = sum(before >= x for before in numbers[:i]) < k
        chosen.append(candidate and sum(chosen) < budget[i])
    found = running_topk(torch.tensor([[numbers]]).double(), torch.tensor([budget]), k)
    assert found.tolist() == [[chosen]]


def test_operations_count_running_maxima_and_sums():
    assert formulas()[torch.ops.longspan.running_topk]((2, 3, 10), (1, 10), 5) == 60 * 7


@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
@pytest.mark.parametrize("dtype, k, words", [(torch.float64, 1, "takes float32"), (torch.float32, 99, "16 at most")])
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(dtype, k, words):
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        running_topk(torch.zeros(1, 1, 3, dtype=dtype), torch.ones(1, 3, dtype=torch.long), k, impl="triton")


@needs_compiler
@pytest.mark.full
def test_it_compiles_for_a_large_gpu():
    from longspan.kernels.running_topk import triton as kernels

    constants = {"k": 5, "K": 16, "T": 4096, "num_warps": 16}
    kinds = {"x": "*fp32", "budget": "*i32", "chosen": "*u8"}
    assert compiled(kernels.running_topk, constants, kinds, otherwise="i32").metadata.shared <= 64 * 1024
