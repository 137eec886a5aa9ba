"""The running covariance: what it refuses, what it counts, and that its kernel compiles for a large GPU."""

import pytest
import torch

from longspan.core.errors import UsageError
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.flops import formulas
from longspan.kernels.running_covariance import running_covariance
from tests.kernels.sm90 import compiled, needs_compiler


@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
@pytest.mark.parametrize(
    "t, c, dtype, words",
    [(3, 2, torch.float64, "float32"), (3, 129, torch.float32, "128 channels"), (0, 2, torch.float32, "no tokens")],
)
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(t, c, dtype, words):
    q, heat = torch.zeros(1, 1, t, c, dtype=dtype), torch.ones(1, 1, 1, dtype=dtype)
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        running_covariance(q, q, q, heat, impl="triton")
    assert running_covariance(q, q, q, heat)[0].shape == q.shape


def test_operations_are_a_few_products_a_token():
    q = (2, 3, 10, 5)
    assert formulas()[torch.ops.longspan.running_covariance](q) == 4 * 2 * 3 * 10 * 25
    assert formulas()[torch.ops.longspan.running_covariance_backward](q, q) == 12 * 2 * 3 * 10 * 25


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("name", ["forward", "backward"])
@pytest.mark.parametrize("c, C, warps", [(5, 16, 1), (64, 64, 4), (128, 128, 16)])
def test_it_compiles_for_a_large_gpu_without_tf32(name, c, C, warps):
    from longspan.kernels.running_covariance import triton as kernels

    constants = {"c": c, "C": C, "TOKENS": 64, "num_warps": warps}
    built = compiled(getattr(kernels, name), constants, {"h": "i32", "t": "i32", "chunks": "i32"}, otherwise="*fp32")
    assert built.metadata.shared <= 160 * 1024
    assert "tf32" not in built.asm["ptx"]
