"""Sums over buckets: what the kernel refuses, what it counts, and that it compiles for a large GPU."""

import pytest
import torch

from longspan.core.errors import UsageError
from longspan.kernels.bucket_sums import bucket_sums, operator
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.flops import formulas
from longspan.kernels.launch import next_power_of_2
from tests.kernels.sm90 import compiled, needs_compiler


@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
@pytest.mark.parametrize(
    "n, c, dtype, words",
    [(3, 2, torch.float64, "float32"), (3, 129, torch.float32, "128 wide"), (0, 2, torch.float32, "no tokens")],
)
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(n, c, dtype, words):
    x, codes = torch.zeros(1, 1, n, c, dtype=dtype), torch.zeros(1, 1, n, 2, dtype=torch.int16)
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        bucket_sums(x, x, x, codes, codes, impl="triton")
    assert bucket_sums(x, x, x, codes, codes).shape == x.shape


def test_operations_are_linear_in_tokens_and_hashes():
    forward, backward = (
        formulas()[getattr(torch.ops.longspan, name)] for name in ("bucket_sums", "bucket_sums_backward")
    )
    q, k, v, of_q, of_k = (2, 3, 10, 5), (2, 3, 20, 5), (2, 3, 20, 4), (2, 3, 10, 7), (2, 3, 20, 7)
    tokens = 6 * (10 + 20) * 7
    assert forward(q, k, v, of_q, of_k, 1.0, False) == 2 * tokens * operator.STEP * 4
    products = operator.STEP * (5 + 4) + 2 * 5 * 4
    assert backward(v, q, k, v, of_q, of_k, 1.0, False) == 2 * tokens * (operator.STEP * 4 + 2 * products)
    assert backward(v, None, None, v, of_q, of_k, 1.0, False) == forward(q, k, v, of_q, of_k, 1.0, False)


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("kind, size", [("bf16", 2), ("fp32", 4)])
@pytest.mark.parametrize("c", [20, 64, 128])
@pytest.mark.parametrize(
    "name, backward, products, plain",
    [
        ("ends", False, True, False),
        ("sums", False, False, True),
        ("sums", False, True, False),
        ("sums", True, True, True),
    ],
)
def test_it_compiles_for_a_large_gpu_without_tf32(name, backward, products, plain, kind, size, c):
    from longspan.kernels.bucket_sums import triton as kernels

    T, warps = operator.TILES[size, c > 64]
    constants = {"r": c, "e": c, "R": next_power_of_2(c), "E": next_power_of_2(c), "T": T, "CAUSAL": True}
    constants |= {"BACKWARD": backward, "PRODUCTS": products, "PLAIN": plain, "FIRST": False}
    constants |= {"num_warps": warps, "num_stages": 1}
    kinds = dict.fromkeys(("matrices", "vectors", "y", "z"), "*fp32") | {"order": "*i32", "codes": "*i16"}
    kinds |= dict.fromkeys(("items", "m", "receivers", "givers", "share", "hashes", "turn"), "i32")
    built = compiled(getattr(kernels, name), constants, kinds, otherwise=f"*{kind}", multiples="share")
    assert built.metadata.shared <= 96 * 1024
    assert "tf32" not in built.asm["ptx"]
