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
def one(tmp_path_factory):
    """All trainings by one process."""
    folder = tmp_path_factory.mktemp("one")
    train_all(make_fabric("cpu", "fp32", 1), folder)
    return folder


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.full)])
def several(tmp_path_factory, request):
    """All trainings by two processes, or by four."""
    folder = tmp_path_factory.mktemp("several")
    make_fabric("cpu", "fp32", request.param).launch(partial(train_all, folder=folder))
    return folder


@pytest.fixture(params=KINDS)
def outcomes(one, several, request):
    """For each way to train: what one process found, and what each of several did."""
    found = []
    for way in ways_of(request.param):
        place = f"{request.param} {way}"
        if ranks := sorted((several / place).glob("rank*.pt")):  # some ways are for two alone
            found.append([torch.load(path, weights_only=False) for path in (one / place / "rank0.pt", *ranks)])
    return found


def test_all_processes_have_the_same_weights_to_the_last_bit(outcomes):
    for _, first, *others in outcomes:
        for name, weight in first["weights"].items():
            assert all(torch.equal(weight, other["weights"][name]) for other in others), name


def test_several_processes_end_with_the_weights_of_one(outcomes):
    for one, first, *_ in outcomes:
        torch.testing.assert_close(first["weights"], one["weights"], rtol=1e-5, atol=2e-6)


def test_several_processes_draw_the_curve_of_one(outcomes):
    for one, first, *others in outcomes:
        assert all(first["curve"] == other["curve"] for other in others)
        assert first["curve"] == [pytest.approx(point, rel=1e-5, abs=1e-7) for point in one["curve"]]


def test_several_processes_score_every_test_row_once_as_one_does(outcomes):
    for one, first, *_ in outcomes:
        assert first["count"] == one["count"]
        assert first["metrics"] == pytest.approx(one["metrics"], rel=1e-5)
        assert first["valid"] == pytest.approx(one["valid"], rel=1e-5)
        assert first["also"] == (one["also"] and pytest.approx(one["also"], rel=1e-5))
        assert np.array_equal(first["predictions"]["row"], one["predictions"]["row"])


def test_a_batch_norm_that_knows_one_process_only_is_refused_where_there_are_several(tmp_path):
    several: Any = SimpleNamespace(world_size=2)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(UsageError, match="1 is a batch norm of torch, whose statistics are those of one process"):
        train(TASK, model, small_splits(), RULES, fabric=several, seed=0, folder=tmp_path)
    assert unsynchronised(nn.Sequential(BatchNorm(2))) == []
