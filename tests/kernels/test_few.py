"""Many tokens against a few: laws against their formulas, kernels against the laws, and what the compiler says."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.few_keys import few_keys
from longspan.kernels.few_queries import few_queries
from longspan.kernels.flops import formulas
from longspan.kernels.normed_means import normed_means
from longspan.kernels.segment_means import borders, reference
from tests.kernels.in_a_process import ROUNDS, assert_passes, needs_triton
from tests.kernels.sm90 import compiled, needs_compiler

sizes = st.integers(1, 7)


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@given(sizes, sizes, st.sampled_from([0.0, 0.3]), st.booleans())
@settings(deadline=None, max_examples=30)
def test_a_few_queries_sum_exponentials(r, m, half, masked):
    torch.manual_seed(r + 10 * m)
    q, k, v = double(2, 2, r, 3), double(2, 2, m, 3), double(2, 2, m, 4)
    mask = torch.rand(2, m) < 0.6 if masked else None
    weights = (q @ k.mT - half * (k * k).sum(-1)[:, :, None]).exp()
    weights = weights if mask is None else weights * mask[:, None, None]
    total = weights.sum(dim=-1)
    y, level = few_queries(q, k, v, half=half, key_mask=mask)
    torch.testing.assert_close(y * total[..., None], weights @ v)
    torch.testing.assert_close(level[total > 0], total[total > 0].log())
    assert not y[total == 0].any()
    assert not level[total == 0].any()


@given(sizes, sizes, st.booleans(), st.booleans())
@settings(deadline=None, max_examples=30)
def test_a_few_keys_are_averaged_with_both_factors(n, r, with_factor, hide):
    torch.manual_seed(n + 10 * r)
    q, k, v, center = double(2, 2, n, 3), double(2, 2, r, 3), double(2, 2, r, 4), double(2, 2, r, 3)
    shift, base = double(2, 2, r), double(2, 2, r)
    if hide:
        shift[0, :, 0] = -torch.inf
    weights = (q @ k.mT).exp() * shift.exp()[:, :, None]
    if with_factor:
        t = (q @ center.mT).exp() * (shift > -torch.inf)[:, :, None]
        t = t / t.sum(dim=-1, keepdim=True).clamp(min=1e-300)
        weights = weights * (base[:, :, None] + 0.7 * t).clamp(min=1e-8)
    total = weights.sum(dim=-1, keepdim=True)
    expected = weights @ v / torch.where(total > 0, total, 1)
    found = few_keys(q, k, v, shift=shift, factor=(center, base, 0.7) if with_factor else None)
    torch.testing.assert_close(found, expected)


def test_hidden_queries_count_as_zero():
    q, k, v = double(1, 1, 3, 3), double(1, 1, 2, 3), double(1, 1, 2, 4)
    mask = torch.tensor([[True, False, True]])
    q[:, :, 1] = torch.nan
    y = few_keys(q, k, v, query_mask=mask)
    torch.testing.assert_close(y, few_keys(q.nan_to_num(0.0), k, v))


@given(st.integers(1, 30), st.integers(1, 9), st.sampled_from([0.0, 0.5, 1.0]))
@settings(deadline=None, max_examples=60)
def test_borders_enclose_the_tokens_of_each_segment(n, segments, share):
    mask = torch.rand(2, n, generator=torch.Generator().manual_seed(n)) < share
    x = double(2, 1, n, 2)
    begins, occupied = borders(mask, segments)
    means, expected = reference.segment_means(x, segments, mask, longer="last")
    assert torch.equal(occupied, expected)
    assert begins[:, 0].eq(0).all()
    assert begins[:, -1].eq(n).all()
    for row in range(2):
        for r in range(segments):
            run = slice(begins[row, r], begins[row, r + 1])
            tokens = x[row, :, run][:, mask[row, run]]
            found = tokens.mean(dim=1) if tokens.numel() else torch.zeros(1, 2, dtype=x.dtype)
            torch.testing.assert_close(found, means[row, :, r])


def test_normed_means_are_means_of_a_layer_norm():
    x, weight, bias = double(2, 2, 12, 5), double(5, 5), double(5)
    means, _ = normed_means(x, weight, bias, 4, eps=1e-3)
    normed = F.layer_norm(x @ weight.mT + bias, (5,), eps=1e-3)
    torch.testing.assert_close(means, normed.unflatten(2, (4, 3)).mean(dim=3))


def test_operations_count_the_products_of_many_with_few():
    ops, few, many, vector = torch.ops.longspan, (2, 3, 5, 8), (2, 3, 100, 8), (2, 3, 5)
    one = 2 * 2 * 3 * 100 * 5 * 8
    assert formulas()[ops.few_queries](few, many, many, None) == 2 * one
    assert formulas()[ops.few_queries_backward](few, vector, few, many, many, None) == 5 * one
    assert formulas()[ops.few_keys](many, few, few, None, None, None) == 2 * one
    assert formulas()[ops.few_keys](many, few, few, vector, few, vector) == 3 * one
    assert formulas()[ops.few_keys_backward](many, many, few, few, None, None, None) == 5 * one
    assert formulas()[ops.few_keys_backward](many, many, few, few, vector, few, vector) == 8 * one
    assert formulas()[ops.normed_means](many, (8, 8)) == 2 * 2 * 3 * 100 * 8 * 8
    assert formulas()[ops.normed_means_backward](few, many, (8, 8)) == 3 * 2 * 2 * 3 * 100 * 8 * 8


@pytest.mark.parametrize(
    "r, c, dtype, words",
    [(70, 16, torch.float32, "do not fit"), (70, 70, torch.bfloat16, "do not fit"), (4, 16, torch.float64, "float32")],
)
@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
def test_what_the_kernels_cannot_do_is_refused_with_a_sentence(r, c, dtype, words):
    few, many = torch.zeros(1, 1, r, c, dtype=dtype), torch.zeros(1, 1, 3, c, dtype=dtype)
    for call in (lambda: few_queries(few, many, many, impl="triton"), lambda: few_keys(many, few, few, impl="triton")):
        with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
            call()


@needs_triton
@pytest.mark.parametrize("choice", ROUNDS, ids=" ".join)
def test_the_kernels_follow_the_laws(choice):
    assert_passes("few_kernel.py", *choice)


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("few", [1, 64, 128])
@pytest.mark.parametrize(
    "package, name",
    [("few_queries", "_collect"), ("few_queries", "_back"), ("few_keys", "_read"), ("few_keys", "_back"),
     ("normed_means", "_means"), ("normed_means", "_back")],
)  # fmt: skip
def test_they_compile_for_a_large_gpu_within_the_memory_on_its_chip(package, name, few):
    from importlib import import_module

    kernels = import_module(f"longspan.kernels.{package}.triton")
    kernel, many = getattr(kernels, name), torch.empty(1, 1, 8192, 64, dtype=torch.bfloat16, device="meta")
    small = torch.empty(1, 1, few, 64, device="meta")
    tiles = None if package == "normed_means" else kernels.BACK if name == "_back" else kernels.FORTH
    if package == "few_queries":
        constants = kernels._launch(tiles, small, many, many)
    elif package == "few_keys":
        constants = kernels._launch(tiles, many, small, small, small, small, many)
    else:
        constants = kernels._launch(many, few)
    constants["MASKED"] = True
    in_half = {"few_queries": {"k", "v", "dk", "dv"}, "few_keys": {"q", "y", "dy", "dq"}, "normed_means": {"x", "dx"}}
    kinds = dict.fromkeys(in_half[package], "*bf16") | {"mask": "*u8", "begins": "*i32"}
    kinds |= dict.fromkeys(("half", "beta", "eps"), "fp32")
    kinds |= dict.fromkeys(("heads", "n", "share", "segments", "stride"), "i32")
    built = compiled(kernel, constants, kinds, otherwise="*fp32")
    assert built.metadata.shared <= (112 if few <= 64 else 164) * 1024
