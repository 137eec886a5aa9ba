"""Several processes train like one, for every task: the same update and the same scores."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from longspan import attentions, tasks
from longspan.backbones.batch_norm import BatchNorm, unsynchronised
from longspan.core.errors import UsageError
from longspan.runs.fabric import make_fabric
from longspan.tasks.base import Evaluation
from longspan.training.evaluation import join
from longspan.training.loop import train
from tests.training.ranks import KINDS, RESUMED, splits_of, train_all, train_resumed, train_several, ways_of
from tests.training.small import RULES, TASK, small_splits


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.full)])
def processes(request):
    return request.param


@pytest.fixture(scope="module")
def one(tmp_path_factory, processes):
    """All training runs in one process."""
    folder, alone = tmp_path_factory.mktemp("one"), make_fabric("cpu", "fp32", 1)
    train_all(alone, folder, full=processes > 2)
    train_resumed(alone, folder / "uninterrupted")
    return folder


@pytest.fixture(scope="module")
def several(tmp_path_factory, processes):
    """All training runs in two processes in the most informative ways, or in four in every way."""
    folder, alone = tmp_path_factory.mktemp("several"), make_fabric("cpu", "fp32", 1)
    train_resumed(alone, folder / "begun by one", stop_at=3)
    make_fabric("cpu", "fp32", processes).launch(partial(train_several, folder=folder, full=processes > 2))
    train_resumed(alone, folder / "begun by several")
    return folder


@pytest.fixture(params=KINDS)
def outcomes(one, several, processes, request):
    """For each way to train: the outcome of one process, and of each of several."""
    found = []
    for way in ways_of(request.param, full=processes > 2):
        place = f"{request.param} {way}"
        if ranks := sorted((several / place).glob("rank*.pt")):  # one way needs exactly two processes
            assert len(ranks) == processes
            found.append([torch.load(path, weights_only=False) for path in (one / place / "rank0.pt", *ranks)])
    assert found
    return found


def test_all_processes_have_the_same_weights_to_the_last_bit(outcomes):
    for _, first, *others in outcomes:
        for name, weight in first["weights"].items():
            assert all(torch.equal(weight, other["weights"][name]) for other in others), name


def test_several_processes_end_with_the_weights_of_one(outcomes):
    for one, first, *_ in outcomes:
        double = any(weight.dtype == torch.float64 for weight in one["weights"].values())
        rtol, atol = (1e-12, 1e-12) if double else (1e-5, 2e-6)
        torch.testing.assert_close(first["weights"], one["weights"], rtol=rtol, atol=atol)


def test_several_processes_draw_the_curve_of_one(outcomes):
    for one, first, *others in outcomes:
        assert all(first["curve"] == other["curve"] for other in others)
        assert first["curve"] == [pytest.approx(point, rel=1e-5, abs=1e-7) for point in one["curve"]]


def test_several_processes_score_every_test_row_once_as_one_does(outcomes):
    for one, first, *_ in outcomes:
        assert first["count"] == one["count"]
        byte = 5e-5 if "ssim" in one["metrics"] else 0.0  # a byte of a picture may be rounded differently
        assert first["metrics"] == pytest.approx(one["metrics"], rel=1e-5, abs=byte)
        assert first["valid"] == pytest.approx(one["valid"], rel=1e-5)
        assert first["also"] == (one["also"] and pytest.approx(one["also"], rel=1e-5))
        assert np.array_equal(first["predictions"]["row"], one["predictions"]["row"])


@pytest.mark.parametrize("kind", RESUMED)
@pytest.mark.parametrize("begun", ["begun by one", "begun by several"])
def test_a_run_goes_on_with_another_number_of_processes(one, several, begun, kind):
    """Sharded or not, with carries from step to step, weight averages and selected weights."""
    alone = torch.load(one / "uninterrupted" / kind / "rank0.pt", weights_only=False)
    found = torch.load(several / begun / kind / "rank0.pt", weights_only=False)
    assert (alone["resumed"], found["resumed"]) == (0, 1)
    torch.testing.assert_close(found["weights"], alone["weights"], rtol=1e-5, atol=2e-6)
    assert found["curve"] == [pytest.approx(point, rel=1e-5, abs=1e-7) for point in alone["curve"]]
    assert found["metrics"] == pytest.approx(alone["metrics"], rel=1e-5)


@pytest.mark.parametrize("name", ["softmax", "linear", "dpfp"])
def test_processes_that_share_the_tokens_of_a_row_attend_as_one_does(one, several, name):
    whole = torch.load(one / f"{name} rank0.pt")
    parts = [torch.load(path) for path in sorted(several.glob(f"{name} rank*.pt"))]
    for part in ("y", "x"):
        torch.testing.assert_close(torch.cat([own[part] for own in parts], dim=1), whole[part])
    for own in parts:
        torch.testing.assert_close(own["weights"], whole["weights"])


@pytest.mark.parametrize(
    "changes, mechanism, sentence",
    [
        ({}, "performer", "Performer needs the whole of each row, which recipe.parallel=context shares"),
        ({"recipe.order": "streams"}, "softmax", "shares the tokens of a row, which streams read on"),
    ],
)
def test_a_network_whose_rows_cannot_be_shared_is_refused(changes, mechanism, sentence, tmp_path):
    several: Any = SimpleNamespace(world_size=2, device="cpu")
    task = tasks.get("lm")
    rules = task.protocol("longspan", "smoke").override(KINDS["lm"] | {"recipe.parallel": "context"} | changes)
    model = task.model(attentions.get(mechanism), rules)
    with pytest.raises(UsageError, match=sentence):
        train(task, model, splits_of(task, rules), rules, fabric=several, seed=0, folder=tmp_path)


def test_a_process_without_rows_to_predict_adds_nothing():
    some = Evaluation({"loss": 2.0}, 1, {"row": np.array([0]), "cost": np.array([3.0])})
    none = Evaluation({"loss": 4.0}, 1, {"row": np.array([], int)})
    for shares in ([some, none], [none, some]):
        joined = join(TASK, shares)
        assert joined.metrics["loss"] == 3.0
        assert joined.predictions["cost"].tolist() == [3.0]


def test_a_batch_norm_that_knows_one_process_only_is_refused_where_there_are_several(tmp_path):
    several: Any = SimpleNamespace(world_size=2)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(UsageError, match="1 is a batch norm of torch, whose statistics are those of one process"):
        train(TASK, model, small_splits(), RULES, fabric=several, seed=0, folder=tmp_path)
    assert unsynchronised(nn.Sequential(BatchNorm(2))) == []
