"""Geometry of point clouds: the reference against loops and cases by hand, and the kernels against the reference."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.flops import formulas
from longspan.kernels.point_cloud import (
    farthest_points,
    k_nearest,
    nearest,
    nearest_both_ways,
    operator,
    reference,
    take,
)
from tests.kernels.memory import LargestTensor
from tests.kernels.sm90 import compiled, needs_compiler

SMALL = st.integers(1, 12)


def cloud(*shape, seed=0, lattice=False):
    points = torch.randn(*shape, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return points.round() if lattice else points


def all_squares(a, b):
    return (a[:, :, None] - b[:, None]).square().sum(dim=-1)


# -------------------------------------------------------------------------------------------------------------- nearest


@given(SMALL, SMALL, st.booleans(), st.integers(0, 9))
@settings(deadline=None, max_examples=30)
def test_the_nearest_point_is_the_first_of_the_nearest(n, m, lattice, seed):
    a, b = cloud(2, n, seed=seed, lattice=lattice), cloud(2, m, seed=seed + 10, lattice=lattice)
    distance, index = nearest(a, b)
    squares = all_squares(a, b).numpy()
    assert np.array_equal(index.numpy(), squares.argmin(axis=-1))  # numpy takes the first
    np.testing.assert_allclose(distance.numpy(), squares.min(axis=-1))


def test_gradients_reach_both_clouds():
    a, b = cloud(2, 5).requires_grad_(), cloud(2, 7, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: nearest(a, b)[0], (a, b))
    assert torch.autograd.gradcheck(nearest_both_ways, (a, b))


def test_both_ways_are_one_way_and_the_other():
    a, b = cloud(2, 9), cloud(2, 6, seed=1)
    a_mask, b_mask = torch.arange(9).expand(2, -1) != 4, torch.arange(6).expand(2, -1) > 1
    there, back = nearest_both_ways(a, b, a_mask=a_mask, b_mask=b_mask)
    assert torch.equal(there, nearest(a, b, mask=b_mask)[0] * a_mask)  # 0 for hidden points
    assert torch.equal(back, nearest(b, a, mask=a_mask)[0] * b_mask)


def test_the_gradient_is_twice_the_difference_and_adds_up_where_a_point_is_nearest_twice():
    a = torch.tensor([[[0.0, 0, 0], [1, 0, 0]]], requires_grad=True)
    b = torch.tensor([[[0.0, 3, 0], [50, 0, 0]]], requires_grad=True)
    nearest(a, b)[0].sum().backward()
    assert a.grad.tolist() == [[[0, -6, 0], [2, -6, 0]]]
    assert b.grad.tolist() == [[[-2, 12, 0], [0, 0, 0]]]


@given(SMALL, SMALL, st.integers(0, 9))
@settings(deadline=None, max_examples=20)
def test_hidden_points_are_as_good_as_absent(n, m, seed):
    a, b = cloud(1, n, seed=seed), cloud(1, m, seed=seed + 10)
    padded, mask = torch.cat([b, a], dim=1), torch.arange(m + n)[None] < m
    assert all(torch.equal(x, y) for x, y in zip(nearest(a, padded, mask=mask), nearest(a, b), strict=True))


def test_a_cloud_without_points_is_infinitely_far_and_gives_no_gradient():
    a, b = cloud(2, 3).requires_grad_(), cloud(2, 4).requires_grad_()
    mask = torch.tensor([[True] * 4, [False] * 4])
    distance, index = nearest(a, b, mask=mask)
    assert distance[0].isfinite().all()
    assert distance[1].isinf().all()
    assert (index[1] == 0).all()
    distance.sum().backward()
    assert (a.grad[1] == 0).all()
    assert (b.grad[1] == 0).all()


def test_a_point_that_is_no_number_has_no_distance_and_spoils_no_other():
    a, b = cloud(1, 4), cloud(1, 5)
    a[0, 1], b[0, 2] = torch.nan, torch.nan
    distance, index = nearest(a, b)
    assert distance.isnan().tolist() == [[False, True, False, False]]
    assert 2 not in index


def test_digits_that_an_expanded_square_would_lose_decide():
    near, far = 1000.0 + 2**-13, 1000.0 + 2**-12
    a, b = torch.tensor([[[1000.0, 1000, 1000]]]), torch.tensor([[[far, 1000, 1000], [near, 1000, 1000]]])
    distance, index = nearest(a, b)
    assert index.item() == 1
    assert distance.item() == 2**-26
    assert k_nearest(a, b, 2).tolist() == [[[1, 0]]]


def test_no_matrix_of_all_distances_is_built():
    a, b = cloud(1, 1_000).float(), cloud(1, 700).float()
    with LargestTensor() as largest:
        nearest(a, b)
        k_nearest(a, b, 8)
    assert largest.numel <= reference.AT_ONCE["cpu"]


@pytest.mark.full
def test_clouds_of_sixteen_thousand_points_agree_with_a_tree():
    from scipy.spatial import cKDTree

    a, b = cloud(1, 16_384), cloud(1, 16_384, seed=1)
    distance, index = nearest(a, b)
    expected, place = cKDTree(b[0].numpy()).query(a[0].numpy())
    np.testing.assert_allclose(distance[0].sqrt().numpy(), expected)
    assert np.array_equal(index[0].numpy(), place)


# ------------------------------------------------------------------------------------------------------------ k nearest


@given(SMALL, SMALL, st.booleans(), st.integers(0, 9))
@settings(deadline=None, max_examples=30)
def test_k_nearest_are_a_stable_sort_of_all_distances(n, m, lattice, seed):
    a, b = (cloud(2, x, seed=seed + x, lattice=lattice).float() for x in (n, m))
    order = all_squares(a, b).sort(dim=-1, stable=True).indices
    for k in (1, m):
        assert torch.equal(k_nearest(a, b, k), order[..., :k])


def test_each_point_is_its_own_nearest_neighbour():
    x = cloud(2, 50).float()
    assert torch.equal(k_nearest(x, x, 1)[..., 0], torch.arange(50).expand(2, -1))


@pytest.mark.parametrize("k", [0, 6])
def test_more_neighbours_than_points_are_refused(k):
    with pytest.raises(UsageError, match=f"{k} nearest neighbours were asked for among 5 points"):
        k_nearest(cloud(1, 3), cloud(1, 5), k)


# ------------------------------------------------------------------------------------------------------------- farthest

HAND = torch.tensor([[[0, 0, 1], [0, 0, 1.1], [3, 0, 1], [0, 2, 1], [0.01, 0, 0]]])


@pytest.mark.parametrize(
    "skip, k, expected",
    [
        ("near_origin", 5, [0, 2, 3, 1, 0]),
        ("near_origin", 7, [0, 2, 3, 1, 0, 0, 0]),
        ("zero", 5, [0, 2, 3, 4, 1]),
        ("zero", 8, [0, 2, 3, 4, 1, 0, 0, 0]),
        ("zero", 1, [0]),
    ],
)
def test_farthest_points_by_hand(skip, k, expected):
    assert farthest_points(HAND, k, skip=skip).tolist() == [expected]


def test_padding_is_never_sampled_and_ties_go_to_the_lowest_index():
    x = torch.tensor([[[1.0, 0, 0], [0, 0, 0], [2, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]]])
    assert farthest_points(x, 7).tolist() == [[0, 3, 5, 2, 0, 0, 0]]  # 3 and 5 are equally far, 2 is nearer


def test_a_cloud_of_padding_gives_its_first_row():
    assert farthest_points(torch.zeros(2, 4, 3), 3).tolist() == [[0, 0, 0]] * 2


@given(SMALL, st.integers(1, 20), st.booleans(), st.integers(0, 9))
@settings(deadline=None, max_examples=30)
def test_each_sample_is_the_farthest_from_those_before(n, k, lattice, seed):
    x = cloud(1, n, seed=seed, lattice=lattice).abs() + 1  # no zero rows
    found, squares = farthest_points(x, k)[0].tolist(), all_squares(x, x)[0]
    expected = [0]
    while len(expected) < k:
        expected.append(squares[expected].amin(dim=0).argmax().item())
    assert found == expected


def test_sampling_a_sample_again_keeps_its_first_points():
    x = cloud(2, 60, lattice=True)
    sample = take(x, farthest_points(x, 30))
    assert torch.equal(take(sample, farthest_points(sample, 12)), sample[:, :12])


# ----------------------------------------------------------------------------------------------------- take, operations


def test_take_reads_rows_of_each_cloud_and_adds_up_their_gradients():
    x = torch.arange(12.0).view(2, 3, 2).requires_grad_()
    y = take(x, torch.tensor([[[0, 2], [2, 2]], [[1, 1], [0, 1]]]))
    assert y.shape == (2, 2, 2, 2)
    assert y[1, 0, 0].tolist() == [8, 9]
    y.sum().backward()
    assert x.grad[..., 0].tolist() == [[1, 0, 3], [1, 3, 0]]


def test_operations_count_eight_a_pair():
    ops = torch.ops.longspan
    assert formulas()[ops.nearest_point]((2, 5, 3), (2, 7, 3)) == 8 * 2 * 5 * 7
    assert formulas()[ops.nearest_points_both_ways]((2, 5, 3), (2, 7, 3)) == 8 * 2 * 5 * 7
    assert formulas()[ops.k_nearest_points]((2, 5, 3), (2, 7, 3), 4) == 8 * 2 * 5 * 7
    assert formulas()[ops.farthest_points]((2, 5, 3), (2, 5), 4) == 8 * 2 * 5 * 4


@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
def test_what_the_kernels_cannot_do_is_refused_with_a_sentence():
    with pytest.raises(UsageError, match=r"nearest cannot run here: it takes float32.*impl='auto'"):
        nearest(cloud(1, 2), cloud(1, 2), impl="triton")
    with pytest.raises(UsageError, match=r"farthest_points cannot run here.*16384 points, got 16385"):
        farthest_points(torch.zeros(1, 16_385, 3), 2, impl="triton")


@needs_compiler
@pytest.mark.full
def test_they_compile_for_a_large_gpu():
    from longspan.kernels.point_cloud import triton as kernels

    pointers = dict.fromkeys(("a", "b", "x", "start", "query", "source"), "*fp32")
    pointers |= dict.fromkeys(("index", "blocks"), "*i64")
    launches = [
        (kernels.nearest, operator.NEAREST | {"BOTH": False}),
        (kernels.nearest, operator.NEAREST | {"BOTH": True}),
        (kernels.in_block, {"R": operator.NEAREST["R"], "T": operator.COLUMNS}),
        (kernels.k_nearest, {"k": 16, "M": 2048, "num_warps": 1}),
        (kernels.k_nearest, {"k": 8, "M": 16_384, "num_warps": 8}),
        (kernels.farthest_points, {"N": 2048, "num_warps": 4}),
        (kernels.farthest_points, {"N": 16_384, "num_warps": 16}),
    ]
    for kernel, constants in launches:
        assert compiled(kernel, constants, pointers, otherwise="i32").metadata.shared <= 48 * 1024
