"""A window and extra keys: the reference against loops, the kernels against the reference, and compiled for a GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.kernels.block_sparse.extra_keys import window_with_extra_keys
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.flops import formulas
from tests.kernels.sm90 import STRIDES, compiled, needs_compiler

BLOCKS, WINDOW = (8, 4, 4, 0, 1), (1, 511, 0, 16, 1)  # step, left, right, chunk, rank


def near_keys(i, n, step, left, right):
    return range(max(0, i // step * step - left), min(n, i // step * step + step + right))


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 20), step=st.integers(1, 6), left=st.integers(0, 8), right=st.integers(0, 4),
    chunk=st.none() | st.integers(1, 6), rank=st.integers(1, 3), hides=st.booleans(),
)  # fmt: skip
def test_the_reference_and_copies_of_keys_are_a_loop_over_queries(n, step, left, right, chunk, rank, hides):
    torch.manual_seed(n)
    far = 4 if chunk is None else n // chunk * rank
    q, k, v = torch.randn(3, 1, 1, n, 3).double()
    far_k, far_v = torch.randn(2, 1, 1, far, 3).double()
    mask = torch.rand(1, n) < 0.6 if hides else None
    rule = {"step": step, "left": left, "right": right, "chunk": chunk, "rank": rank, "key_mask": mask}
    reference, copies = (
        window_with_extra_keys(q, k, v, far_k, far_v, **rule, impl=impl) for impl in ("reference", "gather")
    )
    for i in range(n):
        near = [j for j in near_keys(i, n, step, left, right) if mask is None or mask[0, j]]
        seen = far if chunk is None else i // chunk * rank
        keys, values = (torch.cat([a[0, 0, :seen], b[0, 0, near]]) for a, b in ((far_k, k), (far_v, v)))
        expected = (keys @ q[0, 0, i] / 3**0.5).softmax(dim=0) @ values  # 0 if there are no keys
        torch.testing.assert_close(reference[0, 0, i], expected)
        torch.testing.assert_close(copies[0, 0, i], expected)


@pytest.mark.parametrize("n", [1, 63, 1000])
@pytest.mark.parametrize("rule", [BLOCKS, WINDOW, (1, 40, 0, 7, 2)])
def test_operations_count_the_pairs_that_are_seen(n, rule):
    step, left, right, chunk, rank = rule
    far = n // chunk * rank if chunk else 32
    pairs = sum(len(near_keys(i, n, step, left, right)) + (i // chunk * rank if chunk else far) for i in range(n))
    shapes = [(2, 3, t, 8) for t in (n, n, n, far, far)]
    assert formulas()[torch.ops.longspan.window_with_extra_keys](*shapes, None, *rule) == 4 * 6 * 8 * pairs
    back = formulas()[torch.ops.longspan.window_with_extra_keys_backward]
    assert back(shapes[0], shapes[0], shapes[0][:3], *shapes, None, *rule) == 10 * 6 * 8 * pairs


@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
@pytest.mark.parametrize("c, dtype, words", [(200, torch.float32, "at most 128"), (16, torch.float64, "half")])
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(c, dtype, words):
    x = torch.zeros(1, 1, 3, c, dtype=dtype)
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        window_with_extra_keys(x, x, x, x, x, impl="triton")


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rule, far", [(BLOCKS, 32), (WINDOW, 1024)])
@pytest.mark.parametrize("name", ["_forward", "_backward_queries", "_backward_window", "_backward_extra"])
def test_it_compiles_for_a_large_gpu_within_the_memory_on_its_chip(name, rule, far, masked):
    from longspan.kernels.block_sparse import extra_keys_triton as kernels

    kernel = getattr(kernels, name)
    sample = torch.empty(1, 1, 1, 64, dtype=torch.bfloat16)
    owned, met, constants = kernels.launch(kernels.FORWARD if name == "_forward" else kernels.BACKWARD, sample, rule)
    M, N = (met, owned) if name in ("_backward_window", "_backward_extra") else (owned, met)
    constants |= {"M": M, "N": N, "F": min(N, far), "R": owned, "MASKED": masked}
    constants |= {} if masked else {"mask": None}
    sums = ("lse", "delta", *(("dk", "dv") if name == "_backward_extra" else ()))
    kinds = dict.fromkeys(sums, "*fp32") | {"mask": "*u8", "scale": "fp32", "root": "fp32"}
    kinds |= dict.fromkeys(("heads", "n", "f", "share"), "i32")
    built = compiled(kernel, constants, kinds, otherwise="*bf16", multiples=f"n|f|share|{STRIDES}")
    assert built.metadata.shared <= 112 * 1024
