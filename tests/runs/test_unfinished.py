"""`runs` lists whatever is in the folder of runs, and `runs --clean` removes it; neither ever crashes."""

import json

import pytest
from typer.testing import CliRunner

from longspan import runs
from longspan.cli.app import app

CELL = {"task": "listops", "mechanism": "softmax", "pattern": None, "protocol": "longspan", "tier": "smoke"}
SOUND = {"cell": CELL | {"seed": 0, "overrides": {}}, "steps": 10}


def folder(out, content, name="listops-longspan-smoke-seed0-0123456789ab"):
    path = out / "runs" / name
    path.mkdir(parents=True)
    (path / "cell.json").write_text(content)
    (path / "checkpoint-000000004.pt").write_bytes(b"weights")
    return path


BROKEN = {
    "empty": "",
    "no JSON": "{cell",
    "a list": "[]",
    "no cell": "{}",
    "a field too many": json.dumps({"cell": SOUND["cell"] | {"colour": "red"}, "steps": 10}),
    "a field missing": json.dumps({"cell": {"task": "listops"}, "steps": 10}),
    "no steps": json.dumps({"cell": SOUND["cell"]}),
    "steps in words": json.dumps(SOUND | {"steps": "ten"}),
    "a seed in words": json.dumps({"cell": SOUND["cell"] | {"seed": "zero"}, "steps": 10}),
    "a task in numbers": json.dumps({"cell": SOUND["cell"] | {"task": 3}, "steps": 10}),
    "settings in a list": json.dumps({"cell": SOUND["cell"] | {"overrides": ["steps"]}, "steps": 10}),
    "an unknown task": json.dumps({"cell": SOUND["cell"] | {"task": "chess"}, "steps": 10}),
    "too deep": "[" * 100_000,
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_cell_is_listed_and_cleaned(tmp_path, content):
    path = folder(tmp_path, content)
    (found,) = runs.unfinished(tmp_path)
    assert (found.path, found.cell, found.step) == (path, None, 4)
    assert "cannot be read" in found.problem
    answer = CliRunner().invoke(app, ["runs", "--out", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    assert runs.clean(tmp_path) == [path]
    assert runs.unfinished(tmp_path) == []
    assert not path.exists()


def test_a_sound_one_of_an_older_version_is_listed_and_cleaned(tmp_path):
    path = folder(tmp_path, json.dumps(SOUND | {"code": {"mechanism_version": 1}}))
    (found,) = runs.unfinished(tmp_path)
    assert (found.cell.task, found.step, found.steps, found.problem) == ("listops", 4, 10, None)
    assert runs.clean(tmp_path) == [path]


def test_odd_names_and_things_in_the_way_are_survived(tmp_path):
    path = folder(tmp_path, json.dumps(SOUND))
    (path / "checkpoint-last.pt").write_bytes(b"?")
    (path / "checkpoint-.pt").mkdir()
    (path / "link").symlink_to("nowhere")
    (tmp_path / "runs" / "a file").write_text("mine")
    (tmp_path / "runs" / "measure-0123456789ab").mkdir()
    (found,) = runs.unfinished(tmp_path)
    assert found.step == 4
    assert runs.clean(tmp_path) == [path]
    assert runs.unfinished(tmp_path) == []


def test_a_cell_that_is_a_folder_is_cleaned(tmp_path):
    path = tmp_path / "runs" / "odd"
    (path / "cell.json").mkdir(parents=True)
    assert "cannot be read" in runs.unfinished(tmp_path)[0].problem
    runs.clean(tmp_path)
    assert not path.exists()


def test_checkpoints_that_were_set_aside_stay_until_they_are_cleaned(tmp_path):
    path = tmp_path / "runs" / "finished"
    (path / "set-aside").mkdir(parents=True)
    (path / "set-aside" / "checkpoint-000000001.pt").write_bytes(b"of another run")
    (path / "log.csv").write_text("step")
    (found,) = runs.unfinished(tmp_path)
    assert found.bytes > 0
    assert runs.clean(tmp_path) == [path]
    assert [file.name for file in path.iterdir() if file.name != "lock"] == ["log.csv"]
