"""The Triton kernel of ragged linear attention against its law, on a GPU or in Triton's interpreter.

`test_ragged_linear.py` runs this file in a process of its own, since Triton asks at its import whether to interpret.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.kernels.ragged_linear import operator, ragged_linear
from longspan.kernels.ragged_linear import triton as kernel
from tests.kernels.agreement import assert_agrees, outcome
from tests.kernels.device import DEVICE
from tests.kernels.graphs import assert_one_graph, check
from tests.kernels.ragged_rows import draw, offsets_of

AWKWARD = [1, 2, 63, 64, 65, 200]
# In float32 only the order of sums differs. In bfloat16 phi, w and results are rounded, by 2^-9 of themselves each, and
# sums of numbers about 1 may cancel after that.
TOLERANCE = {torch.float32: (2e-5, 2e-5), torch.bfloat16: (4e-3, 1e-2)}  # absolute and relative


@pytest.fixture
def large_tiles(monkeypatch):
    """In the interpreter a small tile takes as long as a large one; the compiler gets the shapes it will always get."""
    if DEVICE == "cpu":
        shapes = {size: (64, *rest) for size, (_, *rest) in kernel.SHAPES.items()}
        monkeypatch.setattr(kernel, "SHAPES", shapes)


def follow(lengths, *, dtype=torch.float32, feature="elu", heads=2, r=16, e=32, queries=None):
    inputs = draw(lengths, heads, r, e, queries=queries, dtype=dtype, positive=feature == "none", device=DEVICE)
    rows = {"cu_seqlens": offsets_of(lengths, DEVICE), "max_seqlen": max(lengths), "feature": feature}
    if queries is not None:
        rows |= {"query_cu_seqlens": offsets_of(queries, DEVICE), "max_query_seqlen": max(queries)}

    def by(impl):
        return lambda q, k, v: ragged_linear(q, k, v, **rows, impl=impl)

    atol, rtol = TOLERANCE[dtype]
    assert_agrees(by("triton"), by("reference"), inputs, atol=atol, rtol=rtol)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.full)])
@pytest.mark.parametrize("feature", ["elu", "none"])
def test_outputs_and_gradients_are_those_of_the_law_at_awkward_lengths(feature, dtype):
    follow(AWKWARD, feature=feature, dtype=dtype)


def test_the_tiles_of_a_gpu_give_the_same_in_single_precision():
    follow([17, 1, 70])


@pytest.mark.usefixtures("large_tiles")
@given(st.lists(st.integers(0, 66), min_size=1, max_size=3).filter(any), st.integers(1, 3), st.sampled_from([16, 48]))
@settings(deadline=None, max_examples=5)
def test_any_rows_agree(lengths, heads, r):
    follow(lengths, heads=heads, r=r, e=16)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("r, e", [(128, 48), pytest.param(16, 112, marks=pytest.mark.full)])
def test_widths_may_differ_and_need_no_power_of_two(r, e):
    follow([5, 66], r=r, e=e, heads=1, dtype=torch.bfloat16)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("queries", [[1, 1, 1, 1], [0, 65, 3, 0]])
def test_queries_may_be_others_than_the_keys(queries):
    follow([64, 2, 0, 70], queries=queries)


@pytest.mark.usefixtures("large_tiles")
def test_parts_of_a_long_row_add_up(monkeypatch):
    monkeypatch.setattr(kernel, "TILES_EACH", 1)
    assert kernel.parts_of_a_sum(2, 200, 64) == 4
    follow([200, 3])


@pytest.mark.usefixtures("large_tiles")
def test_no_two_runs_differ_in_a_bit():
    inputs, rows = draw([65, 130], 2, 16, 16, device=DEVICE), (offsets_of([65, 130], DEVICE), 130)
    one, other = (
        outcome(lambda q, k, v: ragged_linear(q, k, v, *rows, feature="elu", impl="triton"), inputs) for _ in range(2)
    )
    assert all(map(torch.equal, one, other))


@pytest.mark.usefixtures("large_tiles")
def test_inputs_and_gradients_may_lie_in_memory_in_any_order():
    inputs = draw([5, 66], 2, 16, 16, device=DEVICE)
    strided = [x.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for x in inputs]

    def back(q, k, v):
        y = ragged_linear(q, k, v, offsets_of([5, 66], DEVICE), 66, feature="elu", impl="triton")
        return torch.autograd.grad(y.sum(), (q, k, v))  # the gradient of a sum is one number, stretched

    for found, expected in zip(back(*strided), back(*inputs), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("large_tiles")
def test_torch_finds_nothing_wrong_with_the_operator():
    inputs = draw([3, 20], 2, 16, 32, device=DEVICE)
    cu_seqlens = offsets_of([3, 20], DEVICE)
    check(operator.forward, *inputs, cu_seqlens, cu_seqlens, 20, 20, True, 1e-6)


@pytest.mark.usefixtures("large_tiles")
def test_it_goes_into_one_compiled_graph_for_any_rows():
    def layer(q, k, v, cu_seqlens, max_seqlen):
        return ragged_linear(q * 1, k, v, cu_seqlens, max_seqlen, feature="elu", impl="triton") * 2

    rows = [4, 30], [9, 7, 66]
    assert_one_graph(layer, ((*draw(x, 2, 16, 16, device=DEVICE), offsets_of(x, DEVICE), max(x)) for x in rows))
