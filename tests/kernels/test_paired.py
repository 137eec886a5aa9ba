"""A block and extra keys: the reference against loops, the kernels against the reference, and compiled for a GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.kernels.block_sparse.extra_keys import block_with_extra_keys
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.flops import formulas
from tests.kernels.sm90 import STRIDES, compiled, needs_compiler


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 20), block=st.integers(1, 7), beside=st.integers(1, 5), causal=st.booleans(), hides=st.booleans()
)  # fmt: skip
def test_the_reference_and_copies_of_keys_are_a_loop_over_queries(n, block, beside, causal, hides):
    torch.manual_seed(n)
    g = -(-n // block)
    q, k, v = torch.randn(3, 1, 1, n, 3).double()
    other_k, other_v = torch.randn(2, 1, 1, g, beside, 3).double()
    real, seen, begun = (torch.rand(1, *shape) < 0.5 for shape in ((n,), (1, g, beside), (n,)))
    masks = {"key_mask": real, "extra_mask": seen, "sees_extra": begun} if hides else {}
    tensors, rule = (q, k, v, other_k, other_v), {"block": block, "causal": causal, **masks}
    reference, copies = (block_with_extra_keys(*tensors, **rule, impl=impl) for impl in ("reference", "gather"))
    apart = block_with_extra_keys(*tensors, **rule, separate=True)

    def attend(query, keys, values):
        return (keys @ query / 3**0.5).softmax(dim=0) @ values  # 0 if there are no keys

    for i in range(n):
        u = i // block
        own = range(u * block, i + 1 if causal else min(u * block + block, n))
        own = [j for j in own if not hides or real[0, j]]
        other = [r for r in range(beside) if not hides or (seen[0, 0, u, r] and begun[0, i])]
        near, extra = (k[0, 0, own], v[0, 0, own]), (other_k[0, 0, u, other], other_v[0, 0, u, other])
        expected = attend(q[0, 0, i], *(torch.cat(pair) for pair in zip(near, extra, strict=True)))
        torch.testing.assert_close(reference[0, 0, i], expected)
        torch.testing.assert_close(copies[0, 0, i], expected)
        torch.testing.assert_close(apart[0, 0, i], attend(q[0, 0, i], *near) + attend(q[0, 0, i], *extra))


def test_operations_count_the_pairs_of_both_blocks():
    q, v, other_k, other_v = (2, 3, 100, 8), (2, 3, 100, 5), (2, 3, 7, 4, 8), (2, 3, 7, 4, 5)
    tensors, pairs = (q, q, v, other_k, other_v, None, None, None), 2 * 3 * 100 * (16 + 4)
    assert formulas()[torch.ops.longspan.block_with_extra_keys](*tensors, 16, False) == 2 * pairs * (8 + 5)
    # products over 8 channels for scores, keys and queries, over 5 for values and their gradients
    backward = formulas()[torch.ops.longspan.block_with_extra_keys_backward]
    assert backward(v, *tensors, 16, False) == 2 * pairs * (3 * 8 + 2 * 5)


@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
@pytest.mark.parametrize(
    "n, c, dtype, words",
    [(3, 200, torch.float32, "at most 128"), (65, 16, torch.float32, "64 tokens"), (3, 16, torch.float64, "half")],
)
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(n, c, dtype, words):
    x = torch.zeros(1, 1, n, c, dtype=dtype)
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        block_with_extra_keys(x, x, x, x[:, :, None], x[:, :, None], block=n, impl="triton")


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("name", ["_forward", "_backward"])
def test_it_compiles_for_a_large_gpu_within_the_memory_on_its_chip(name, width, masked):
    from longspan.kernels.block_sparse import paired_triton as kernels

    some = torch.ones(1, 1, 1, 1, dtype=torch.uint8)
    masks = (some[0, 0], some, some[0, 0]) if masked else (None, None, None)
    constants = kernels.constants(width, width, 64, 64, masked, *masks)
    constants |= {} if masked else dict.fromkeys(("mask", "extra_mask", "sees"))
    kinds = dict.fromkeys(("mask", "extra_mask", "sees"), "*u8") | {"scale": "fp32", "root": "fp32"}
    kinds |= dict.fromkeys(("heads", "n"), "i32")
    built = compiled(getattr(kernels, name), constants, kinds, otherwise="*bf16", multiples=f"n|{STRIDES}")
    assert built.metadata.shared <= 112 * 1024
