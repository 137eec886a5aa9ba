"""Operations are counted for every kernel, and a count of zero is refused."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from longspan import kernels
from longspan.core.errors import UsageError
from longspan.efficiency.operations import count_operations
from longspan.kernels.flops import causal_pairs, formulas

KERNELS = Path(kernels.__path__[0])


def qkv(n=12, m=12, c=8, **how):
    return [torch.randn(2, 3, length, c, **how) for length in (n, m, m)]


def test_a_count_of_zero_is_refused_with_a_sentence():
    with pytest.raises(UsageError, match="No operations were counted"):
        count_operations(lambda: torch.ones(3) + 1)


def test_fused_attention_counts_what_is_seen_forth_and_back():
    q, k, v = qkv(requires_grad=True)
    forth = count_operations(lambda: F.scaled_dot_product_attention(q, k, v))
    assert forth == 2 * 3 * 4 * 8 * 12 * 12
    causal = count_operations(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert causal == 2 * 3 * 4 * 8 * causal_pairs(12, 12)
    both = count_operations(lambda: F.scaled_dot_product_attention(q, k, v).sum().backward())
    assert both == 3.5 * forth


def test_transforms_and_running_sums_are_counted():
    x = torch.randn(4, 64)
    assert count_operations(lambda: torch.fft.rfft(x)) == 2.5 * 4 * 64 * 6
    assert count_operations(lambda: torch.fft.irfft(torch.fft.rfft(x), n=64)) == 2 * 2.5 * 4 * 64 * 6
    assert count_operations(lambda: torch.fft.fft(x.to(torch.complex64), dim=0)) == 5 * 4 * 64 * 2
    assert count_operations(lambda: x.cumsum(dim=1)) == 4 * 64


def test_packed_rows_count_their_own_tokens_alone():
    offsets = torch.tensor([0, 3, 10], dtype=torch.int32)
    rows = [torch.empty(10, 2, 8, device="meta") for _ in "qkv"]
    forth = formulas()[torch.ops.aten._flash_attention_forward]
    assert forth(*rows, offsets, offsets, 7, 7, 0.0, False, False) == 2 * 4 * 8 * (3 * 3 + 7 * 7)
    assert forth(*rows, offsets, offsets, 7, 7, 0.0, True, False) == 2 * 4 * 8 * (6 + 28)
    importlib.import_module("longspan.kernels.linear_attention")
    linear = formulas()[torch.ops.longspan.linear_attention]
    assert linear(*((1, 2, 10, 8) for _ in rows), *[None] * 5, 7, 7, "elu") == 2 * 20 * 2 * 8 * 9


def test_every_operator_of_ours_that_multiplies_says_how_much():
    """Found by their names in the sources, so that a new one is not forgotten."""
    silent = {"sinkhorn_normalize", "sinkhorn_normalize_backward"}  # few operations on a small matrix
    silent |= {"layer_norm", "layer_norm_backward", "cross_polytope_hash"}  # elementwise
    silent |= {"dpfp_features", "dpfp_features_backward"}  # likewise
    for module in pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}."):
        if not module.name.endswith("triton"):
            importlib.import_module(module.name)
    sources = "".join(p.read_text() for p in KERNELS.rglob("*.py"))
    named = re.findall(r'(?:custom_op\(\s*"longspan::|operator\(\s*")(\w+)"', sources)
    assert set(named) - {operation.__name__ for operation in formulas()} == silent
