"""Feature maps: kernels compile for a large GPU, and what they cannot do is refused."""

import pytest
import torch

from longspan.core.errors import UsageError
from longspan.kernels import feature_map
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.feature_map.operator import FeatureShape
from tests.kernels.sm90 import STRIDES, compiled, needs_compiler


@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence():
    x = torch.randn(1, 1, 3, 4)
    with pytest.raises(UsageError, match="at most 128 wide, got 4 and 200"):
        feature_map.waves(x, torch.randn(1, 200, 4), 1.0, impl="triton")
    with pytest.raises(UsageError, match="float32 or all in bfloat16"):
        feature_map.dpfp(x.double(), 2, impl="triton")


def test_half_precision_is_computed_in_single_precision_and_rounded_once():
    x, matrix = torch.randn(1, 2, 5, 4).bfloat16(), torch.randn(2, 3, 4)
    assert torch.equal(feature_map.dpfp(x, 2), feature_map.dpfp(x.float(), 2).bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        found = feature_map.waves(x, matrix, 0.5)
    assert torch.equal(found, feature_map.waves(x.float(), matrix, 0.5).bfloat16())


def test_products_of_large_numbers_do_not_overflow_in_float16():
    assert feature_map.dpfp(torch.full((1, 1, 2, 4), 1e4).half(), 1).isfinite().all()


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", ["_dpfp", "_dpfp_backward", "_waves", "_waves_backward"])
def test_they_compile_for_a_large_gpu(name, dtype):
    from longspan.kernels.feature_map import triton as kernels

    shape = FeatureShape(32, 64, 2 if "dpfp" in name else 64)
    kinds = {"matrix": "*fp32", "parts": "*fp32", "scale": "fp32", **dict.fromkeys(("heads", "n", "share"), "i32")}
    constants = shape.dpfp if "dpfp" in name else shape.waves
    built = compiled(getattr(kernels, name), constants, kinds, otherwise=f"*{dtype}", multiples=STRIDES)
    assert built.metadata.shared <= 64 * 1024
