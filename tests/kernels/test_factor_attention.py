"""Attention with factored scores: torch's fused kernel agrees with the explicit score matrix, and is as precise."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.conformance.counting import count
from longspan.kernels.factor_attention import factor_attention, is_faster
from longspan.kernels.sdpa import chosen
from tests.kernels.in_a_process import assert_passes

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
HALF = [torch.bfloat16, torch.float16]
fused = partial(factor_attention, impl="fused")


def tables(h, n, m, rank, size=1.0):
    """Factors whose scores are of magnitude `size`."""
    return tuple(size**0.5 * rank**-0.25 * torch.randn(h, length, rank, dtype=torch.float64) for length in (n, m))


def explicit(rows, columns, v, key_mask=None, *, causal=False):
    scores = (rows @ columns.mT)[None]
    visible = torch.ones_like(scores, dtype=torch.bool)
    visible = visible.tril() if causal else visible
    visible = visible if key_mask is None else visible & key_mask[:, None, None]
    return scores.masked_fill(~visible, -1e300).softmax(dim=-1).masked_fill(~visible, 0) @ v


def with_gradients(attention, rows, columns, v, *rest, **how):
    leaves = [u.detach().requires_grad_() for u in (rows, columns, v)]
    y = attention(*leaves, *rest, **how)
    w = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(y.device)
    return [y.detach(), *torch.autograd.grad((y.double() * w).sum(), leaves)]


def errors(problem, dtypes, **how):
    """The relative errors of outputs and gradients against double precision."""
    *tensors, mask = problem
    coarse = [u.to(dtype) for u, dtype in zip(tensors, dtypes, strict=True)]
    found = with_gradients(fused, *coarse, mask, **how)
    expected = with_gradients(explicit, *(u.double() for u in coarse), mask, **how)
    assert [u.dtype for u in found] == [dtypes[2], *dtypes]
    return [float((one - other).norm() / other.norm()) for one, other in zip(found, expected, strict=True)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("causal", [False, True])
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12), st.integers(1, 20), st.booleans(), st.data())
@settings(deadline=None, max_examples=12)
def test_outputs_and_gradients_are_those_of_the_explicit_matrix(device, causal, n, m, rank, e, masked, data):
    torch.manual_seed(n)
    m = n if causal else m
    mask = None
    if masked:  # a full row, one with gaps, one of only padding
        gaps = data.draw(st.lists(st.booleans(), min_size=m, max_size=m))
        mask = torch.tensor([[True] * m, gaps, [False] * m], device=device)
    problem = [u.to(device) for u in (*tables(2, n, m, rank), torch.randn(3, 2, m, e, dtype=torch.float64))]
    found, expected = (with_gradients(f, *problem, mask, causal=causal) for f in (fused, explicit))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    if masked:
        assert not found[0][2].any()
        assert not found[3][~mask[:, None].expand(-1, 2, -1)].any()


def draw(device, *, masked, size, n=150, e=64):
    torch.manual_seed(0)
    mask = torch.rand(3, n) < torch.tensor([[1.0], [0.6], [0.0]])
    problem = *tables(2, n, n, 8, size), torch.randn(3, 2, n, e, dtype=torch.float64), mask
    return [*(u.to(device) for u in problem[:3]), problem[3].to(device) if masked else None]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_single_precision_stays_single_precision(device, causal, masked):
    for size in (1, 30):
        problem = draw(device, masked=masked, size=size)
        assert max(errors(problem, [torch.float32] * 3, causal=causal)) < 1e-5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("e", [16, 64])
def test_tables_of_single_precision_lose_nothing_beside_values_of_half(device, dtype, causal, masked, e):
    unit = torch.finfo(dtype).eps  # the kernel rounds the output, the weights and their gradients
    for size, fold in ((1, 1), (30, 3)):  # with a weight near 1, gradients are small differences
        problem = draw(device, masked=masked, size=size, e=e)
        output, *gradients = errors(problem, [torch.float32, torch.float32, dtype], causal=causal)
        assert output < 0.5 * unit
        assert max(gradients) < fold * unit
        assert max(errors(problem, [dtype] * 3, causal=causal)) < fold * unit
    *tables, v, mask = problem
    exact, rounded = (
        explicit(*(u.to(d).double() for u in tables), v, mask, causal=causal) for d in (torch.float32, dtype)
    )
    assert (rounded - exact).norm() / exact.norm() > unit  # scores of 30 would expose rounded tables


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_memory_is_linear_in_the_length(causal, masked):
    def peak(n):
        rows, columns = (torch.randn(2, n, 8, requires_grad=True) for _ in range(2))
        v, mask = torch.randn(1, 2, n, 16, requires_grad=True), torch.arange(n)[None] < n - 9 if masked else None
        return count(lambda: fused(rows, columns, v, mask, causal=causal).sum().backward()).peak_bytes

    assert peak(1024) < 2.1 * peak(512)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernels of a GPU")
@pytest.mark.parametrize("masked", [False, True])
def test_a_gpu_computes_it_without_a_matrix(monkeypatch, masked):
    seen = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def spy(q, k, v, *, is_causal, scale):
        seen.append(chosen(q, k, v, causal=is_causal))
        return plain(q, k, v, is_causal=is_causal, scale=scale)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for e in (3, 16, 64, 100):
            *problem, mask = draw("cuda", masked=masked, size=1, e=e)
            rows, columns, v = (u.float() for u in problem)
            fused(rows, columns, v.to(dtype), mask, causal=True)
    assert "math" not in seen


@pytest.mark.full
def test_callers_can_be_compiled():
    assert_passes("compiled_factors.py", "--noconftest")  # conftest's shape checks cannot be compiled


def test_weights_are_made_once_where_many_rows_share_them():
    rows, few, many = torch.zeros(2, 9, 8), torch.zeros(4, 2, 9, 8), torch.zeros(32, 2, 9, 8)
    assert is_faster(rows, few, None)
    assert not is_faster(rows, many, None)
    assert is_faster(rows, many, torch.ones(32, 9, dtype=torch.bool))
    longest, values = torch.empty(2, 2**15, 8, device="meta"), torch.empty(32, 2, 2**15, 8, device="meta")
    assert is_faster(longest, values, None)  # rather than store 2^31 weights
