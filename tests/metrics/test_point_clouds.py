"""Distances between point clouds: hand-checked numbers, both rules for padding, and what no rule may change."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.metrics.point_cloud import SCALE, category_mean, chamfer_l1, chamfer_l2, f_score

A = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [0, 1, 0]]])
B = torch.tensor([[[0, 0, 0.5], [1, 0, 0], [0, 3, 0]]])
OPPOSED, ONE = torch.tensor([[[1.0, -1, 0], [1, 0, 0]]]), torch.tensor([[[1.0, 0, 0]]])


@pytest.mark.parametrize(
    "a, b, removed, l1, l2",
    [
        (A, B, "nothing", 686.339, 1916.667),
        (A, B, "zero_rows", 799.181, 2375),
        (A, B, "zero_sums", 799.181, 2375),
        (OPPOSED, ONE, "zero_sums", 0, 0),  # a real point mistaken for padding
        (OPPOSED, ONE, "zero_rows", 250, 500),
    ],
)
def test_chamfer_distances_by_hand(a, b, removed, l1, l2):
    assert SCALE * chamfer_l1(a, b, removed=removed).item() == pytest.approx(l1, abs=5e-4)
    assert SCALE * chamfer_l2(a, b, removed=removed).item() == pytest.approx(l2, abs=5e-4)
    assert chamfer_l1(b, a, removed=removed).item() == pytest.approx(l1 / SCALE, rel=1e-5)


def test_the_f_score_by_hand():
    prediction = torch.tensor([[[0.0, 0, 0], [0.005, 0, 0], [1, 0, 0]]])
    truth = torch.tensor([[[0.0, 0, 0], [0, 0, 2]]])
    assert f_score(prediction, truth).item() == pytest.approx(4 / 7)  # the row of zeros counts as a point here


def test_a_distance_of_the_threshold_itself_does_not_count():
    origin = torch.zeros(1, 1, 3)
    score = [f_score(origin, torch.tensor([[[x, 0.0, 0.0]]])).item() for x in (0.00999, 0.01, 0.02)]
    assert score == [1, 0, 0]


def test_categories_count_alike():
    assert category_mean(np.array([6.0, 8.0, 10.0]), np.array([0, 0, 1])) == 8.5
    assert category_mean(np.array([10.0, 6.0, 8.0]), np.array([3, 1, 1])) == 8.5
    with pytest.raises(UsageError, match="no scores"):
        category_mean(np.array([]), np.array([], dtype=int))


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_rows_of_zeros_change_nothing_where_they_are_removed(n, m, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.rand(2, x, 3, generator=generator) + 0.1 for x in (n, m))
    padded = torch.cat([a, torch.zeros(2, 4, 3)], dim=1)[:, torch.randperm(n + 4, generator=generator)]
    for chamfer in (chamfer_l1, chamfer_l2):
        torch.testing.assert_close(chamfer(padded, b, removed="zero_rows"), chamfer(a, b))
        assert (chamfer(a, a) == 0).all()


def test_every_cloud_of_a_batch_has_its_own_distance():
    a, b = torch.rand(3, 5, 3), torch.rand(3, 8, 3)
    for metric in (chamfer_l1, chamfer_l2, lambda a, b: f_score(a, b, 0.3)):
        alone = torch.cat([metric(a[i : i + 1], b[i : i + 1]) for i in range(3)])
        torch.testing.assert_close(metric(a, b), alone)


def test_a_cloud_of_nothing_but_padding_is_infinitely_far():
    a = torch.rand(1, 4, 3)
    assert chamfer_l1(a, torch.zeros(1, 4, 3), removed="zero_rows").isinf().all()
    assert chamfer_l2(torch.zeros(1, 2, 3), torch.zeros(1, 4, 3), removed="zero_rows").item() == 0


@pytest.mark.parametrize("chamfer", [chamfer_l1, chamfer_l2])
def test_gradients_are_those_of_calculus_and_none_where_points_coincide(chamfer):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(2, n, 3, dtype=torch.float64, generator=generator).requires_grad_() for n in (4, 6))
    assert torch.autograd.gradcheck(chamfer, (a, b))
    same = a.detach().clone().requires_grad_()
    chamfer(same, a.detach()).sum().backward()
    assert (same.grad == 0).all()


def test_the_distance_is_that_of_a_tree_of_points():
    from scipy.spatial import cKDTree

    a, b = np.random.default_rng(0).random((2, 300, 3))
    there, back = cKDTree(b).query(a)[0], cKDTree(a).query(b)[0]
    found = [metric(torch.tensor(a)[None], torch.tensor(b)[None]).item() for metric in (chamfer_l1, chamfer_l2)]
    assert found == pytest.approx([(there.mean() + back.mean()) / 2, (there**2).mean() + (back**2).mean()])
