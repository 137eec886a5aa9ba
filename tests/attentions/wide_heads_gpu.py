"""One head of 256 or 512 channels, as super-resolution has them, in every mechanism on a GPU: `make test-gpu`."""

import copy

import pytest
import torch

from longspan.conformance.rounding import one_rounding
from tests.attentions.cases import each_case
from tests.attentions.test_wide_heads import inputs, made, outputs


@pytest.mark.parametrize("width", [256, 512])
@pytest.mark.parametrize(("spec", "pattern"), each_case(), ids=str)
def test_a_wide_head_on_a_gpu_is_that_of_the_cpu(spec, pattern, width):
    layer, (given, masks) = made(spec, pattern, width), inputs(pattern, width)
    exact = outputs(copy.deepcopy(layer).double(), given, masks, "cpu", torch.float64)
    single = outputs(copy.deepcopy(layer).cuda(), given, masks, "cuda", torch.float32)
    for found, wanted in zip(single, exact, strict=True):
        assert (found - wanted).norm() <= 1e-3 * wanted.norm()
    with torch.autocast("cuda", torch.bfloat16):
        half = outputs(copy.deepcopy(layer).cuda(), given, masks, "cuda", torch.float32)
    assert all(torch.isfinite(found).all() for found in half)
    moved = one_rounding(torch.bfloat16, 0)  # which may change the choice of a bucket or an edge
    near, _ = outputs(copy.deepcopy(layer).double(), [moved(x) for x in given], masks, "cpu", torch.float64)
    assert (half[0] - exact[0]).norm() <= max(0.1 * exact[0].norm(), 2 * (near - exact[0]).norm())
