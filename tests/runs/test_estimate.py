"""An estimate is made from real steps, scales with the settings, and writes nothing."""

import dataclasses

import pytest
import torch

from longspan import runs, tasks
from longspan.backbones.parameters import count
from longspan.core.errors import UsageError
from longspan.runs import Cell
from longspan.runs.estimate import estimate

SMALL = {"model.dim": 16, "model.layers": 1, "model.mlp": 16, "recipe.batch_size": 4}
CELL = Cell("listops", "softmax", overrides=SMALL)

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LONGSPAN_DATA", raising=False)
    return tmp_path


def changed(**changes):
    return dataclasses.replace(CELL, overrides=SMALL | {name.replace("__", "."): v for name, v in changes.items()})


@pytest.mark.parametrize("mechanism", ["softmax", "s4d", "fnet"])
def test_an_estimate_is_positive_and_writes_nothing(mechanism, folder):
    cell = dataclasses.replace(CELL, mechanism=mechanism)
    found, plan = estimate(cell, device="cpu"), runs.RunPlan.of(cell)
    assert found.seconds > 0
    assert found.memory_bytes > 16 * found.parameters
    assert found.steps == plan.protocol.recipe.steps
    assert found.parameters == count(plan.model())["total"]
    assert "examples at full length on cpu" in found.note
    assert list(folder.iterdir()) == []


def test_memory_grows_with_the_batch_the_length_and_the_layers():
    memory = lambda **changes: estimate(changed(**changes), device="cpu").memory_bytes  # noqa: E731
    assert memory() < memory(recipe__batch_size=8) < memory(recipe__batch_size=32)
    assert memory() < memory(data__shorter_than=256)
    assert memory() < memory(model__layers=3)


def test_pathfinder_is_estimated_at_its_own_length():
    cell = Cell("pathfinder", "linear", overrides={"recipe.batch_size": 2})
    assert estimate(cell, device="cpu").memory_bytes > 2 * 1_024 * 32 * 4


def test_an_estimate_knows_how_many_passes_a_score_takes(monkeypatch):
    """Each estimate times a single step, so only factors of thousands can be compared."""
    cell = changed(recipe__steps=2, recipe__evaluate_every=1)
    plain = estimate(cell, device="cpu").seconds
    monkeypatch.setattr(type(tasks.get("listops")), "passes", lambda self, protocol: (1.0, 1e6))
    assert estimate(cell, device="cpu").seconds > 1_000 * plain
    monkeypatch.setattr(type(tasks.get("listops")), "passes", lambda self, protocol: (1e6, 1.0))
    assert estimate(cell, device="cpu").seconds > 1_000 * plain


def test_a_wrong_request_is_refused():
    with pytest.raises(UsageError, match="A device is auto, cpu or cuda"):
        estimate(CELL, device="tpu")
