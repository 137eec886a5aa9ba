"""A matrix in a file asks for the same cells as the command line, and says what is wrong in it."""

import json

import pytest
from typer.testing import CliRunner

from longspan.cli import app
from longspan.cli.matrix_file import Part, read_matrix
from longspan.core.errors import UsageError


def written(tmp_path, text):
    path = tmp_path / "matrix.toml"
    path.write_text(text)
    return path


def test_parts_take_what_they_do_not_say_from_above(tmp_path):
    path = written(
        tmp_path,
        """
        tasks = ["listops"]
        mechanisms = ["softmax", "linear"]
        seeds = 2
        [set]
        recipe.steps = 3
        data.sizes = [1, 2]
        [[part]]
        tasks = ["recall"]
        set = {}
        [[part]]
        add = {recipe.steps = 4, model.layers = 1}
        [[part]]
        set = {recipe.steps = 5}
        add = {model.layers = 2}
        """,
    )
    changed = {"recipe.steps": 3, "data.sizes": (1, 2)}
    assert read_matrix(path) == [
        Part(("listops",), ("softmax", "linear"), seeds=2, overrides=changed),
        Part(("recall",), ("softmax", "linear"), seeds=2),
        Part(("listops",), ("softmax", "linear"), seeds=2, overrides=changed | {"recipe.steps": 4, "model.layers": 1}),
        Part(("listops",), ("softmax", "linear"), seeds=2, overrides={"recipe.steps": 5, "model.layers": 2}),
    ]


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("tasks = [", "cannot be read"),
        ('tasks = "listops"\nmechanisms = ["softmax"]', "tasks is a list of names"),
        ('tasks = ["listops"]', "mechanisms is a list of names"),
        ('tasks = ["listops"]\nmechanisms = ["softmax"]\nseed = 3', "Did you mean 'seeds'"),
        ('tasks = ["listops"]\nmechanisms = ["softmax"]\nseeds = true', "of type int"),
        ('tasks = ["listops"]\nmechanisms = ["softmax"]\nseeds = 0', "at least 1"),
        ('tasks = ["listops"]\nmechanisms = ["softmax"]\nadd = 3', "add must be of type dict"),
        ("part = 3", r"\[\[part\]\]"),
    ],
)
def test_what_is_wrong_in_a_matrix_is_said_in_one_sentence(tmp_path, text, sentence):
    with pytest.raises(UsageError, match=sentence):
        read_matrix(written(tmp_path, text))


def test_a_matrix_says_everything_itself(tmp_path):
    path = written(tmp_path, 'tasks = ["listops"]\nmechanisms = ["softmax"]')
    for words in (["--tier", "full"], ["-a", "linear"], ["--set", "recipe.steps=1"]):
        done = CliRunner().invoke(app, ["run", str(path), *words])
        assert done.exit_code == 2, done.output


def test_run_prints_json_and_nothing_else(tmp_path):
    path = written(
        tmp_path,
        """
        tasks = ["recall"]
        mechanisms = ["softmax", "none"]
        set = {recipe.steps = 1, data.train = 64, data.test = 64}
        """,
    )
    done = CliRunner().invoke(app, ["run", str(path), "--json", "--out", str(tmp_path / "out")])
    entries = json.loads(done.stdout)
    assert [(entry["state"], entry["mechanism"]) for entry in entries] == [("done", "softmax"), ("done", "none")]
    assert entries[0]["score"]["name"] == "accuracy"


@pytest.mark.parametrize(
    "line, found", [("longspan run lis", "listops"), ("longspan run listops -a perfo", "performer")]
)
def test_a_shell_completes_names(monkeypatch, line, found):
    words = {"_LONGSPAN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(app, [], prog_name="longspan")
    assert found in done.stdout.split()
