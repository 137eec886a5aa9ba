"""The Triton kernels of point clouds against their reference, on a GPU or in Triton's interpreter.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.kernels.point_cloud import farthest_points, k_nearest, nearest, nearest_both_ways, operator
from tests.kernels.agreement import assert_agrees
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import assert_one_graph, check, replayed

SKIPS = ["zero", "near_origin"]
SMALL_TILES = {"R": 16, "C": 16, "STEPS": 4, "num_warps": 1}  # several programs and chunks for few points


def cloud(*shape, seed=0, lattice=False):
    points = torch.randn(*shape, 3, generator=torch.Generator().manual_seed(seed))
    return (points.round() if lattice else points).to(DEVICE)


def both(function, *arguments, **options):
    return (function(*arguments, **options, impl=impl) for impl in ("triton", "reference"))


@pytest.fixture(autouse=True)
def whole_tiles():
    before = dict(operator.NEAREST)
    yield
    operator.NEAREST.update(before)


@given(st.integers(1, 40), st.integers(1, 90), st.integers(0, 9), st.sampled_from(["any", "lattice", "one place"]))
@settings(deadline=None, max_examples=5)
def test_the_nearest_points_are_those_of_the_reference(n, m, seed, kind):
    operator.NEAREST.update(SMALL_TILES)
    a, b = (cloud(2, x, seed=seed + x, lattice=kind == "lattice") * (kind != "one place") for x in (n, m))
    mask = (torch.arange(m) % 3 != seed % 3).expand(2, -1).to(DEVICE) if seed % 2 else None
    (found, index), (expected, place) = both(nearest, a, b, mask=mask)
    torch.testing.assert_close(found, expected)  # a GPU uses fused multiply-adds, so near ties may differ
    assert kind == "any" or torch.equal(index, place)  # but not with integer coordinates
    a_mask = (torch.arange(n) % 4 != seed % 4).expand(2, -1).to(DEVICE) if seed % 3 else None
    for one, other in zip(*both(nearest_both_ways, a, b, a_mask=a_mask, b_mask=mask), strict=True):
        torch.testing.assert_close(one, other)
    if kind != "any":
        backwards = nearest(b, a, impl="reference")[1]
        assert torch.equal(operator.nearest_both_ways(a, b)[1], backwards)


@pytest.mark.parametrize("n, m", [(1, 1), (129, 1000)])
def test_whole_tiles_agree_too(n, m):
    (found, index), (expected, place) = both(nearest, cloud(1, n), cloud(1, m, seed=1))
    torch.testing.assert_close(found, expected)
    assert torch.equal(index, place)


def test_gradients_are_those_of_the_reference():
    def distance(impl):
        return lambda a, b: nearest(a, b, impl=impl)[0]

    def distances(impl):
        return lambda a, b: nearest_both_ways(a, b, impl=impl)

    leaves = [cloud(2, 30), cloud(2, 45, seed=1)]
    for compute in (distance, distances):
        assert_agrees(compute("triton"), compute("reference"), leaves, atol=1e-5, rtol=1e-5)


def test_a_point_that_is_no_number_has_no_distance_and_stays_inside_the_cloud():
    a, b = cloud(1, 5), cloud(1, 9, seed=1)
    a[0, 2], b[0, 3] = torch.nan, torch.nan
    distance, index = nearest(a, b, impl="triton")
    assert distance.isnan().tolist() == [[False, False, True, False, False]]
    assert index.max() < 9
    assert 3 not in index
    there, back = nearest_both_ways(a, b, impl="triton")
    assert torch.equal(there.isnan(), distance.isnan())
    assert back.isnan().sum() == 1
    near = k_nearest(a, b, 9, impl="triton")
    assert near.min() >= 0
    assert near.max() < 9


@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 9), st.booleans())
@settings(deadline=None, max_examples=6)
def test_k_nearest_are_those_of_the_reference(n, m, seed, lattice):
    a, b = (cloud(2, x, seed=seed + x, lattice=lattice) for x in (n, m))
    found, expected = both(k_nearest, a, b, min(m, 1 + seed))
    if lattice:  # on a GPU rounding may swap two neighbours at almost the same distance
        assert torch.equal(found, expected)
    rows = torch.arange(2, device=DEVICE)[:, None, None]
    one, other = ((a[:, :, None] - b[rows, index]).square().sum(dim=-1) for index in (found, expected))
    torch.testing.assert_close(one, other)


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 9), st.booleans(), st.sampled_from(SKIPS))
@settings(deadline=None, max_examples=8)
def test_farthest_points_are_those_of_the_reference_bit_by_bit(n, k, seed, lattice, skip):
    x = cloud(2, n, seed=seed, lattice=lattice)
    x[:, n - n // 4 :] = 0
    found, expected = both(farthest_points, x, k, skip=skip)
    assert torch.equal(found, expected)


def test_torch_finds_nothing_wrong_with_the_operators():
    a, b = cloud(2, 5), cloud(2, 9, seed=1)
    check(operator.nearest, a, b, differentiable=False)
    check(operator.nearest_both_ways, a, b, differentiable=False)
    check(operator.k_nearest, a, b, 4, differentiable=False)
    check(operator.farthest_points, b, torch.ones(2, 9, dtype=torch.bool, device=DEVICE), 4, differentiable=False)


def test_clouds_may_lie_in_memory_in_any_order():
    a, b = cloud(2, 20), cloud(2, 20, seed=1)
    turned = a.mT.contiguous().mT
    assert torch.equal(nearest(turned, b, impl="triton")[1], nearest(a, b, impl="triton")[1])
    every_second = cloud(2, 40, seed=2)[:, ::2]
    assert torch.equal(*both(farthest_points, every_second, 5))


@on_a_gpu
def test_compiled_callers_take_it_into_one_graph():
    calls = [(cloud(2, n).requires_grad_(), cloud(2, 50, seed=1).requires_grad_()) for n in (33, 47)]
    assert_one_graph(lambda a, b: nearest(a, b, impl="triton")[0], calls)


@on_a_gpu
def test_a_recorded_step_replays_neighbours_sampling_and_gradients():
    a, b = cloud(4, 2048).requires_grad_(), cloud(4, 3000, seed=1).requires_grad_()

    def step():
        there, back = nearest_both_ways(a, b)
        return [*torch.autograd.grad(there.sum() + back.sum(), [a, b]), k_nearest(a, b, 8), farthest_points(a, 300)]

    for one, other in replayed(step, redrawn=[a, b]):
        assert torch.equal(one, other)


@on_a_gpu
def test_clouds_of_real_size_agree():
    a, b = cloud(2, 16_384), cloud(2, 16_384, seed=1)
    for found, expected in zip(*both(nearest_both_ways, a, b), strict=True):
        torch.testing.assert_close(found, expected)
    assert torch.equal(*both(farthest_points, a, 600))
    one, other = both(k_nearest, a[:, :2048], a[:, :2048], 16)
    assert (one == other).float().mean() > 0.999
