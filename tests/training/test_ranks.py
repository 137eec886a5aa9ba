"""Several processes train as one does, whatever the task: the same update, and the same figures for it."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from longspan.backbones.batch_norm import BatchNorm, unsynchronised
from longspan.core.errors import UsageError
from longspan.runs.fabric import make_fabric
from longspan.training.loop import train
from tests.training.ranks import KINDS, train_all, ways_of
from tests.training.small import RULES, TASK, small_splits


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """All trainings by one process, and by a pair of them."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    train_all(make_fabric("cpu", "fp32", 1), one)
    make_fabric("cpu", "fp32", 2).launch(partial(train_all, folder=two))
    return one, two


@pytest.fixture(params=KINDS)
def outcomes(folders, request):
    """For each way to train: what one process found, and what each of two did."""
    names = [f"{request.param} {way}" for way in ways_of(request.param)]
    paths = [(folders[0] / n / "rank0.pt", folders[1] / n / "rank0.pt", folders[1] / n / "rank1.pt") for n in names]
    return [[torch.load(path, weights_only=False) for path in three] for three in paths]


def test_both_processes_have_the_same_weights_to_the_last_bit(outcomes):
    for _, first, second in outcomes:
        for name, weight in first["weights"].items():
            assert torch.equal(weight, second["weights"][name]), name


def test_two_processes_end_with_the_weights_of_one(outcomes):
    for one, two, _ in outcomes:
        torch.testing.assert_close(two["weights"], one["weights"], rtol=1e-5, atol=2e-6)


def test_two_processes_draw_the_curve_of_one(outcomes):
    for one, two, second in outcomes:
        assert two["curve"] == second["curve"]
        assert two["curve"] == [pytest.approx(point, rel=1e-5) for point in one["curve"]]


def test_two_processes_score_every_test_row_once_as_one_does(outcomes):
    for one, two, _ in outcomes:
        assert two["count"] == one["count"]
        assert two["metrics"] == pytest.approx(one["metrics"], rel=1e-5)
        assert two["valid"] == pytest.approx(one["valid"], rel=1e-5)
        assert two["also"] == (one["also"] and pytest.approx(one["also"], rel=1e-5))
        assert np.array_equal(two["predictions"]["row"], one["predictions"]["row"])


def test_a_batch_norm_that_knows_one_process_only_is_refused_where_there_are_several(tmp_path):
    several: Any = SimpleNamespace(world_size=2)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(UsageError, match="1 is a batch norm of torch, whose statistics are those of one process"):
        train(TASK, model, small_splits(), RULES, fabric=several, seed=0, folder=tmp_path)
    assert unsynchronised(nn.Sequential(BatchNorm(2))) == []
