"""The card of a cell whose process died records what is known, and uses no data from another cell."""

import json
from dataclasses import asdict

import pytest

from longspan import runs
from longspan.backbones.parameters import count
from longspan.backbones.slots import filled
from longspan.results.store import Store
from longspan.runs.describe import describe
from longspan.runs.failed import _begun, write_card
from longspan.runs.folder import BEGUN
from tests.launchers import hostile

TINY = {"data.train": 8, "data.valid": 4, "data.test": 8, "model.dim": 8, "model.layers": 1, "model.mlp": 8}
TINY |= {"recipe.steps": 2, "recipe.evaluate_every": 1, "recipe.batch_size": 4}


@pytest.fixture
def card(tmp_path, monkeypatch):
    """Writes the card of a dead cell; returns it."""
    monkeypatch.chdir(tmp_path)

    def write(mechanism, keep=False, task="listops"):
        cell = runs.Cell(task, mechanism, overrides=TINY)
        sentence = write_card(cell, "it died", keep=keep, out="out", device="cpu")
        assert sentence.startswith(f"{task} {mechanism} seed 0 failed: it died")
        return next((card for _, card in Store("out/cards").entries()), None)

    return write


@pytest.fixture
def folder(tmp_path):
    """Makes the folder that the dead process has left."""

    def make(mechanism, begun=None):
        place = tmp_path / "out" / "runs" / "mine"
        place.mkdir(parents=True)
        cell = asdict(runs.Cell("listops", mechanism, overrides=TINY))
        (place / "cell.json").write_text(json.dumps({"cell": cell, "steps": 2}))
        (place / "checkpoint-000000001.pt").write_text("")
        if begun is not None:
            (place / BEGUN).write_text(begun)
        return place

    return make


def test_a_plug_in_that_cannot_be_imported_is_described_without_it(card, tmp_path):
    name = hostile.write(tmp_path, "mine", at_import="raise AssertionError('this was imported')")
    found = card(f"{tmp_path}/{name}")
    assert (found["status"], found["reason"], found["mechanism"]) == ("fail", "it died", "mine.py:Mine")
    assert found["parameters"]["total"] is None
    assert found["dataset"]["counts"] == {"train": 8, "valid": 4, "test": 8}
    assert found["pattern"] == "noncausal_self"
    assert found["settings"]["recipe"]["steps"] == 2
    assert "mechanism_sha256" in found["settings"]


def test_its_source_hash_is_that_of_a_run(card, tmp_path):
    name = f"{tmp_path}/{hostile.write(tmp_path, 'mine')}"
    plan = runs.RunPlan.of(runs.Cell("listops", name, overrides=TINY))
    assert card(name)["settings"]["mechanism_sha256"] == plan.code["mechanism_sha256"]


def test_a_built_in_is_described_in_full(card):
    found = card("softmax")
    assert found["parameters"]["ratio"] == 1
    assert found["settings"]["mechanism_version"] == 1


@pytest.mark.parametrize(
    "change", [{}, {"seed": 1}, {"mechanism": "softmax"}, {"task": "text"}, {"status": 3, "tier": 1}]
)
def test_what_the_process_wrote_down_is_used_if_it_is_of_this_cell(card, folder, tmp_path, change):
    name = f"{tmp_path}/{hostile.write(tmp_path, 'mine')}"
    described = card("softmax") | {"mechanism": "mine.py:Mine", "title": "as it was written"} | change
    del described["sha256"]  # the process wrote this before there was a card
    left = folder(name, json.dumps(described))
    card(name)
    (found,) = (one for one in Store("out/cards").cards(superseded=True) if one["mechanism"] == "mine.py:Mine")
    assert (found["title"] == "as it was written") is (not change)
    assert found["seed"] == 0
    assert not left.exists()


def test_the_state_of_a_run_that_took_too_long_is_kept(card, folder):
    left = folder("softmax")
    card("softmax", keep=True)
    assert (left / "checkpoint-000000001.pt").exists()


def test_the_folder_of_another_cell_is_not_touched(card, folder):
    left = folder("linear")
    card("softmax")
    assert (left / "checkpoint-000000001.pt").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"mechanism": 3}', "[" * 100_000, '{"a": NaN}'])
def test_a_damaged_description_is_not_used(card, folder, text):
    folder("softmax", text)
    assert card("softmax")["parameters"]["total"] > 0


def test_a_task_that_cannot_be_asked_leaves_a_sentence_alone(card):
    assert card("softmax", task="mine.py:Mine") is None


@pytest.mark.parametrize("ran, kept", [("performer(features=16)", True), ("softmax", False)])
def test_what_a_dead_run_under_a_preset_has_begun_counts_if_it_is_of_the_mechanism_named(ran, kept, tmp_path):
    cell = runs.Cell("forecasting_etth1", "performer", None, "cab-2023", "smoke")
    plan = runs.RunPlan.of(cell)
    splits = plan.task.splits(plan.protocol, tmp_path)
    model = plan.model()
    begun = describe(plan, splits, count(model), filled(model), [], "cpu", "float32", 1) | {"mechanism": ran}
    assert begun["preset"] == "performer"
    (tmp_path / BEGUN).write_text(json.dumps(begun))
    assert (_begun(tmp_path, cell) is not None) == kept
