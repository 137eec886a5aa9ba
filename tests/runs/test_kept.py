"""What is kept of a run beside its score: samples, a second selection of weights, and what a user gets from it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import longspan
from longspan import runs, tasks
from longspan.results import card as cards
from longspan.results import files, samples
from longspan.results.verify import verify
from longspan.runs import Cell
from tests.training.parted import Parted

CLOUDS = {name: np.zeros((1, 5, 3), np.float16) for name in ("partial", "completed", "truth")}
CLOUDS |= {"kind": np.array("clouds"), "category": np.array(["lamp"])}

torch.set_num_threads(1)


class Speaker:
    """What the task offers to a user."""

    def __init__(self, model, splits):
        self.model, self.splits = model, splits


class Shown(Parted):
    protocols = {("longspan", "smoke"): Parted.protocols["longspan", "smoke"].override({"recipe.also_at": 7})}
    kept = CLOUDS

    @property
    def name(self):
        return "parted"

    def evaluate(self, model, feed, rows, batch_size):
        return replace(super().evaluate(model, feed, rows, batch_size), samples=self.kept)

    def user_object(self, model, protocol, splits, device):
        return Speaker(model, splits)


@pytest.fixture(autouse=True)
def task(tmp_path, monkeypatch):
    """An empty folder, and a registry that lists the small task beside the real ones."""
    found, get, names = Shown(), tasks.get, tasks.names
    monkeypatch.setattr(tasks, "get", lambda name: found if name == "parted" else get(name))
    monkeypatch.setattr(tasks, "names", lambda: [*names(), "parted"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LONGSPAN_DATA", raising=False)
    return found


def made(tmp_path, **rest):
    runs.run(Cell("parted", "softmax"), device="cpu", progress=False, **rest)
    (path,) = (tmp_path / "out" / "cards").rglob("*.json")
    return path, cards.read(path)


def test_a_card_has_samples_and_the_scores_of_both_choices_and_verify_knows_them(tmp_path):
    path, card = made(tmp_path)
    assert set(card["files"]) == {"log", "predictions", "samples", "weights", "weights_at"} == set(card["files_sha256"])
    assert set(card["metrics"]) == {"valid", "test", "test_at_7"}
    assert card["selected_until"].keys() == {"7"}
    assert card["selected_until"]["7"] in (5, 7)
    assert card["score"]["name"] == "spread"
    assert card["metrics"]["test_at_7"]["spread"]["count"] == card["metrics"]["test"]["spread"]["count"]
    found = {finding.check: finding for finding in verify(path)}
    assert found["samples"].status == "kept"
    assert "samples of clouds" in found["samples"].detail
    assert found["files"].status == found["numbers"].status == "kept"
    assert samples.read(path.parent / card["files"]["samples"]).keys() == CLOUDS.keys()
    assert list((tmp_path / "out" / "runs").rglob("*.npz")) == list((tmp_path / "out" / "runs").rglob("*.st*")) == []

    (path.parent / card["files"]["weights_at"]).unlink()  # large, and no number on a card needs it
    assert list(files.faults(path, card, bulky=False)) == []
    (path.parent / card["files"]["samples"]).write_bytes(b"something else")
    assert {finding.check for finding in verify(path) if finding.status == "broken"} == {"files", "samples"}


def test_samples_that_nobody_could_read_are_left_out_and_the_run_is_not_lost(tmp_path, task, capsys):
    task.kept = CLOUDS | {"truth": np.zeros((1, 5, 2), np.float16)}
    _, card = made(tmp_path, weights=False)
    assert set(card["files"]) == {"log", "predictions"}
    assert "The samples of the run are left out: truth must be floats [1 points 3]" in capsys.readouterr().err


def test_loading_a_card_gives_what_the_task_makes_for_users_with_the_data_of_the_run(tmp_path):
    path, card = made(tmp_path)
    speaker = longspan.load(path)
    assert isinstance(speaker, Speaker)
    assert not speaker.model.training
    assert speaker.splits.sha256 == card["dataset"]["sha256"]
    content = json.loads(path.read_text())
    content["dataset"]["sha256"] = "0" * 64
    del content["sha256"]
    cards.write(path, content)
    assert longspan.load(path).splits is None  # data other than the run's are not returned


def test_a_run_selected_by_the_mean_of_the_last_weights_agrees_with_its_card(tmp_path, task, monkeypatch):
    mean = {"recipe.also_at": None, "recipe.selection": "mean_of_last", "recipe.averaged": 2}
    monkeypatch.setattr(Shown, "protocols", {("longspan", "smoke"): task.protocol("longspan", "smoke").override(mean)})
    path, card = made(tmp_path)
    assert card["selected_step"] == 12
    point = card["curve"][-1]["valid_nats_a_row"]
    assert card["metrics"]["valid"]["nats_a_row"]["value"] != point  # of the averaged weights, not the last ones
    assert {finding.check: finding.status for finding in verify(path)}["numbers"] == "kept"


def test_a_card_from_before_a_setting_existed_still_answers_its_cell(tmp_path):
    path, card = made(tmp_path)
    content = {name: value for name, value in card.items() if name != "sha256"}
    for name in ("averaged", "parts", "order"):
        del content["settings"]["recipe"][name]
    path.unlink()
    cards.write(path, content)
    runs.run(Cell("parted", "softmax"), device="cpu", progress=False)
    assert list((tmp_path / "out" / "cards").rglob("*.json")) == [path]
