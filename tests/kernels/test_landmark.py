"""Landmark attention: references against their formulas, kernels against the references, and what the compiler says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.flops import formulas
from longspan.kernels.landmark import landmark_attend, landmark_pool, operator
from tests.kernels.sm90 import compiled, needs_compiler

sizes = st.integers(1, 7)


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@given(sizes, sizes, st.sampled_from([0.0, 0.3]), st.none() | st.integers(1, 3), st.booleans())
@settings(deadline=None, max_examples=30)
def test_a_pool_sums_exponentials(r, m, key_norm, step, masked):
    torch.manual_seed(r + 10 * m)
    q, k, v = double(2, 2, r, 3), double(2, 2, m, 3), double(2, 2, m, 4)
    mask = torch.rand(2, m) < 0.6 if masked else None
    weights = (q @ k.mT - key_norm * (k * k).sum(-1)[:, :, None]).exp()
    weights = weights if mask is None else weights * mask[:, None, None]
    weights = weights if step is None else weights * (torch.arange(m) <= step * torch.arange(r)[:, None])
    total = weights.sum(dim=-1)
    y, lse = landmark_pool(q, k, v, key_norm=key_norm, key_mask=mask, step=step)
    torch.testing.assert_close(y * total[..., None], weights @ v)
    torch.testing.assert_close(lse[total > 0], total[total > 0].log())
    assert not y[total == 0].any()
    assert not lse[total == 0].any()


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
    found = landmark_attend(q, k, v, shift=shift, factor=(center, base, 0.7) if with_factor else None)
    torch.testing.assert_close(found, expected)


def test_hidden_queries_count_as_zero():
    q, k, v = double(1, 1, 3, 3), double(1, 1, 2, 3), double(1, 1, 2, 4)
    mask = torch.tensor([[True, False, True]])
    q[:, :, 1] = torch.nan
    y = landmark_attend(q, k, v, query_mask=mask)
    torch.testing.assert_close(y, landmark_attend(q.nan_to_num(0.0), k, v))


def test_hidden_keys_count_nowhere():
    q, k, v, center = double(2, 2, 7, 3), double(2, 2, 4, 3), double(2, 2, 4, 5), double(2, 2, 4, 3)
    base = double(2, 2, 4)
    mask = torch.tensor([[True, False, True, True], [False] * 4])
    y = landmark_attend(q, k, v, factor=(center, base, 0.7), key_mask=mask)
    k, v, center, base = (x[:1, :, mask[0]] for x in (k, v, center, base))
    torch.testing.assert_close(y[:1], landmark_attend(q[:1], k, v, factor=(center, base, 0.7)))
    assert not y[1].any()


def test_operations_count_the_products_of_many_with_few():
    ops, few, many, vector = torch.ops.longspan, (2, 3, 5, 8), (2, 3, 100, 8), (2, 3, 5)
    one = 2 * 2 * 3 * 100 * 5 * 8
    assert formulas()[ops.landmark_pool](few, many, many, None) == 2 * one
    assert formulas()[ops.landmark_pool_backward](few, vector, few, vector, few, many, many, None) == 5 * one
    assert formulas()[ops.landmark_attend](many, few, few, None, None, None) == 2 * one
    assert formulas()[ops.landmark_attend](many, few, few, vector, few, vector) == 3 * one
    assert formulas()[ops.landmark_attend_backward](many, many, few, few, None, None, None) == 5 * one
    assert formulas()[ops.landmark_attend_backward](many, many, few, few, vector, few, vector) == 8 * one


@pytest.mark.parametrize(
    "r, c, dtype, words",
    [(70, 16, torch.float32, "do not fit"), (70, 70, torch.bfloat16, "do not fit"), (4, 16, torch.float64, "float32")],
)
@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
def test_what_the_kernels_cannot_do_is_refused_with_a_sentence(r, c, dtype, words):
    few, many = torch.zeros(1, 1, r, c, dtype=dtype), torch.zeros(1, 1, 3, c, dtype=dtype)
    for call, inputs in ((landmark_pool, (few, many, many)), (landmark_attend, (many, few, few))):
        with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
            call(*inputs, impl="triton")


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("few", [1, 64, 128])
@pytest.mark.parametrize("name", ["pool", "pool_backward", "attend", "attend_backward"])
def test_they_compile_for_a_large_gpu_within_the_memory_on_its_chip(name, few):
    from longspan.kernels.landmark import triton as kernels

    constants = operator.LandmarkShape(1, few, 64, 64, 2).constants | {"MASKED": True, "STEP": 256}
    if "attend" in name:
        constants |= {"SHIFTED": True, "FACTOR": True, "floor": 1e-8}
    elif name == "pool" and few <= 64:
        constants["num_stages"] = 3
    in_half = {"q", "y", "dy", "dq"} if "attend" in name else {"k", "v", "dk", "dv"}
    kinds = dict.fromkeys(in_half, "*bf16") | {"mask": "*u8", "key_norm": "fp32", "beta": "fp32"}
    kinds |= dict.fromkeys(("heads", "n", "share", "stride"), "i32")
    built = compiled(getattr(kernels, name), constants, kinds, otherwise="*fp32")
    assert built.metadata.shared <= (112 if few <= 64 else 164) * 1024
