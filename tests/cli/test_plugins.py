"""Plug-in tasks and backbones: from `new` to a row of a board, by the name of the file."""

import pytest
from typer.testing import CliRunner

import longspan
from longspan import tasks
from longspan.api import describe, kind_of
from longspan.cli import app, scaffold
from longspan.core.errors import PluginError
from longspan.results import collect
from longspan.results.alike import alike

FEW = {"recipe.steps": 2, "recipe.evaluate_every": 2, "data.train": 40, "data.valid": 8, "data.test": 8}


def call(*words):
    return CliRunner().invoke(app, list(words))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path / "data"))
    return tmp_path


@pytest.mark.parametrize("kind, target", [("task", "mine.py:Mine"), ("backbone", "mine.py:MineTask")])
def test_what_new_writes_is_short_and_runs_to_a_row_of_a_board(kind, target, folder):
    result = call("new", kind, "mine")
    assert result.exit_code == 0
    assert f"longspan run {target} -a softmax linear --tier smoke" in result.output
    assert len((folder / "mine.py").read_text().splitlines()) <= 60
    card = longspan.run(target, "linear", overrides=FEW, device="cpu", progress=False)
    assert (card["status"], card["task"]) == ("ok", target)
    card = {**card, "overrides": {}, "track": "fixed"}  # as a run without overrides, which would take longer
    (view,) = collect.boards([card], target)
    assert [row.mechanism for row in view.rows] == ["linear"]


def test_a_plugin_task_is_called_by_its_file_wherever_that_lies(folder):
    (folder / "far").mkdir()
    scaffold.new("task", "mine", folder / "far")
    assert tasks.get("far/mine.py:Mine").name == "mine.py:Mine"
    assert tasks.get("listops").name == "listops"


def test_a_file_is_loaded_once_and_again_when_it_was_edited(folder):
    path = scaffold.new("task", "mine")
    first = type(tasks.get("mine.py:Mine"))
    assert type(tasks.get("mine.py:Mine")) is first
    assert type(tasks.get(f"{folder}/mine.py:Mine")) is first
    path.write_text(path.read_text() + "\nEDITED = True\n")
    assert type(tasks.get("mine.py:Mine")) is not first


def test_show_knows_what_a_file_holds():
    scaffold.new("attention", "idea")
    scaffold.new("backbone", "mine")
    targets = {"idea.py:Idea": "attentions", "mine.py:MineTask": "tasks", "mine.py:Mine": "backbones"}
    assert {target: kind_of(target) for target in targets} == targets
    assert describe("backbones", "mine.py:Mine")["title"].startswith("Mine: post-norm blocks")
    shown = call("show", "mine.py:MineTask")
    assert shown.exit_code == 0
    assert "ListOps with Mine" in shown.output
    with pytest.raises(PluginError, match="not a subclass"):
        describe("attentions", "mine.py:MineTask")


def test_runs_of_an_edited_task_file_are_not_averaged_with_newer_ones(folder):
    path = scaffold.new("task", "mine")
    old = longspan.run("mine.py:Mine", "linear", overrides=FEW, device="cpu", progress=False)
    path.write_text(path.read_text() + "\nEDITED = True\n")
    new = longspan.run("mine.py:Mine", "linear", overrides=FEW, device="cpu", progress=False)
    old = {**old, "created": "2026-01-01T00:00:00Z"}
    kept, others = alike([old, new])
    assert kept == [new]
    assert others == [(old, "other code of mine.py:Mine")]
