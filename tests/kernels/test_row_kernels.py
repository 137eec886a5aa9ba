"""Softmax pooling, running means, Sinkhorn normalisation: references against loops, kernels against them."""

from importlib import import_module

import pytest
import torch

from longspan.core.errors import UsageError
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.flops import formulas
from longspan.kernels.layer_norm import layer_norm
from longspan.kernels.pooling import running_mean, softmax_pooling
from longspan.kernels.sinkhorn_normalize import sinkhorn_normalize
from tests.kernels.sm90 import compiled, needs_compiler


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("n", [1, 7, 40])
def test_means_are_sums_over_the_real_tokens(n):
    a, x = randn(2, 2, n, 3), randn(2, 2, n, 4)
    mask = torch.arange(n) % 3 != torch.tensor([[0], [1]])
    weighted, running = softmax_pooling(a, x, mask=mask), running_mean(x, mask=mask)
    for b in range(2):
        real = [i for i in range(n) if mask[b, i]]
        if not real:
            assert not weighted[b].any()
            continue
        p = a[b, :, real].softmax(dim=1)
        torch.testing.assert_close(weighted[b], p.mT @ x[b, :, real])
        for t in range(n):
            so_far = x[b, :, [i for i in real if i <= t]]
            expected = so_far.mean(dim=1) if so_far.shape[1] else torch.zeros(2, 4, dtype=torch.float64)
            torch.testing.assert_close(running[b, :, t], expected)


def test_without_a_mask_all_tokens_are_real():
    a, x, all_real = randn(2, 2, 9, 3), randn(2, 2, 9, 4), torch.ones(2, 9, dtype=torch.bool)
    torch.testing.assert_close(softmax_pooling(a, x), softmax_pooling(a, x, mask=all_real))
    torch.testing.assert_close(running_mean(x), running_mean(x, mask=all_real))


def test_sinkhorn_normalisation_is_dividing_rows_and_columns_in_turn():
    x, allowed = randn(2, 3, 4, 5), torch.rand(1, 1, 4, 5, generator=torch.Generator().manual_seed(0)) < 0.8
    matrix = x.exp() * allowed
    for _ in range(3):
        for axis in (3, 2):
            matrix = matrix / matrix.sum(dim=axis, keepdim=True).clamp(min=1e-300)
    torch.testing.assert_close(sinkhorn_normalize(x, allowed, 3), matrix)


def test_operations_count_products_and_running_sums():
    a, x = (2, 3, 10, 4), (2, 3, 10, 8)
    assert formulas()[torch.ops.longspan.softmax_pooling](a, x, None) == 2 * 60 * 8 * 4
    assert formulas()[torch.ops.longspan.softmax_pooling_backward]((), (), (), a, x, None) == 4 * 60 * 8 * 4
    assert formulas()[torch.ops.longspan.running_mean](x, None) == 60 * 8


@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
def test_what_the_kernels_cannot_do_is_refused_with_a_sentence():
    double, wide = torch.zeros(1, 1, 3, 2).double(), torch.zeros(1, 1, 3, 300)
    for call, words in [
        (lambda: softmax_pooling(double, double, impl="triton"), "float32 and half"),
        (lambda: softmax_pooling(wide, wide, impl="triton"), "128 summaries of 128"),
        (lambda: running_mean(double, impl="triton"), "float32 or half"),
        (lambda: running_mean(wide, impl="triton"), "at most 256"),
        (lambda: sinkhorn_normalize(double, double > 0, 1, impl="triton"), "takes float32"),
        (lambda: layer_norm(double, double[0, 0, 0], double[0, 0, 0], 1e-5, impl="triton"), "float32 or half"),
    ]:
        with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
            call()


WHOLE = {"r": 32, "c": 64, "R": 32, "C": 64, "T": 128}
CHUNK = {"r": 1, "c": 64, "R": 16, "C": 64, "T": 16}
STRIPS = {"T": 32, "W": 64}
TILES = {"c": 64, "C": 64, "T": 64}
COMPILED = [
    ("pooling", "softmax_pooling", WHOLE | {"MASKED": True}, 4),
    ("pooling", "softmax_pooling", CHUNK | {"MASKED": False}, 1),
    ("pooling", "softmax_pooling_backward", WHOLE | {"MASKED": True}, 4),
    ("pooling", "softmax_pooling_backward", CHUNK | {"MASKED": False}, 1),
    *(
        ("pooling", name, TILES | {"BACKWARD": backward, "MASKED": True}, 4)
        for name in ("running_sums", "running_means")
        for backward in (False, True)
    ),
    *(
        ("sinkhorn_normalize", name, {"ROWS": rows, "T": 32, "W": 64}, 4)
        for name in ("_lse", "_backward")
        for rows in (False, True)
    ),
    ("sinkhorn_normalize", "_normalized", {"T": 32, "W": 64}, 4),
    *(("layer_norm", name, {"d": 512, "D": 512, "T": 4}, 4) for name in ("forward", "backward")),
]


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("package, name, constants, warps", COMPILED)
def test_they_compile_for_a_large_gpu(package, name, constants, warps):
    kernel = getattr(import_module(f"longspan.kernels.{package}.triton"), name)
    single = ("lse", "delta", "sums")
    half = "*bf16" if package in ("pooling", "layer_norm") else "*fp32"
    kinds = dict.fromkeys(single, "*fp32") | dict.fromkeys(("mask", "allowed"), "*u8")
    kinds |= {"counts": "*i32"} | dict.fromkeys(("heads", "n", "m", "share", "row_stride"), "i32")
    if package == "layer_norm":
        kinds |= {"weight": "*fp32", "bias": "*fp32", "rows": "i32", "eps": "fp32"}
    constants = constants | {"num_warps": warps}
    if package == "pooling" and not constants["MASKED"]:
        constants["mask"] = None
    built = compiled(kernel, constants, kinds, otherwise=half)
    assert built.metadata.shared <= 64 * 1024
