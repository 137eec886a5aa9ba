"""Backbones that replace a task's own, checks of tasks and backbones, and entry points of an installed package."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import longspan
from longspan import tasks
from longspan.cli import app
from longspan.cli import run as run_command
from longspan.cli.matrix_file import Part
from longspan.core.errors import UntrustedCode, UsageError
from longspan.results import collect

ROOT = Path(__file__).parents[2]
NETWORK = "my_backbone.py:PostNormClassifier"
FEW = {"recipe.steps": 2, "recipe.evaluate_every": 2, "data.train": 40, "data.valid": 8, "data.test": 8}
SMALL = {"model.dim": 16, "model.mlp": 16, "model.layers": 1}


def call(*words):
    return CliRunner().invoke(app, list(words))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path / "data"))
    for name in ("my_backbone.py", "my_task.py"):
        (tmp_path / name).write_text((ROOT / "docs" / name).read_text())
    return tmp_path


def test_the_examples_of_the_pages_are_short():
    for name in ("my_backbone.py", "my_task.py"):
        assert len((ROOT / "docs" / name).read_text().splitlines()) <= 60


def test_a_network_and_a_task_are_a_task_of_their_own_up_to_the_board(folder):
    (cell,) = run_command._cells(Part(("listops",), ("linear",), overrides=FEW | SMALL, backbone=f"{folder}/{NETWORK}"))
    card = longspan.run(cell.task, cell.mechanism, overrides=cell.overrides, device="cpu", progress=False)
    assert (card.status, card.task) == ("ok", f"listops@{NETWORK}")
    assert (card.backbone, card.title) == (NETWORK, "Linear Transformer")
    official = {**card, "overrides": {}, "track": "fixed"}
    (view,) = collect.boards([official], f"listops@{NETWORK}")
    assert [row.mechanism for row in view.rows] == ["linear"]
    assert not list(collect.boards([official], "listops"))


def test_an_edited_network_is_other_code_and_a_card_alone_never_runs_it(folder):
    from longspan.runs.cell import Cell, RunPlan

    before = RunPlan.of(Cell(f"listops@{NETWORK}", "softmax")).task_source
    (folder / "my_backbone.py").write_text((folder / "my_backbone.py").read_text() + "\nEDITED = True\n")
    plan = RunPlan.of(Cell(f"listops@{NETWORK}", "softmax"))
    assert before != plan.task_source
    assert plan.is_builtin is False
    with pytest.raises(UntrustedCode), longspan.core.registry.builtins_only():
        tasks.get(f"listops@{NETWORK}")


def test_the_network_is_named_behind_a_task_not_within_a_path():
    assert tasks.parted("listops@far/net.py:Net") == ("listops", "far/net.py:Net")
    assert tasks.parted("mine.py:Mine@net.py:Net") == ("mine.py:Mine", "net.py:Net")
    assert tasks.parted("me@home/mine.py:Mine") == ("me@home/mine.py:Mine", "")


def test_a_task_whose_network_only_fits_itself_says_so():
    with pytest.raises(UsageError, match="only fits itself"):
        tasks.get(f"summarization@{NETWORK}")


def test_check_looks_at_tasks_and_backbones():
    result = call("check", "my_task.py:ShallowListOps", NETWORK, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [one["kind"] for one in found] == ["task", "backbone"]
    assert {promise["status"] for one in found for promise in one["promises"]} == {"kept"}


def test_a_mechanism_and_a_backbone_checked_at_once_give_one_document():
    result = call("check", "none", NETWORK, "--pattern", "NS", "--quick", "--json")
    found = json.loads(result.stdout)
    assert [one.get("kind", one.get("mechanism")) for one in found] == ["backbone", "none"]


def test_a_module_that_is_neither_a_mechanism_nor_a_backbone_is_told_what_it_was_taken_for(folder):
    body = "class Mine(nn.Module):\n    def __init__(self, dim, heads):\n        super().__init__()\n"
    (folder / "mine.py").write_text(f"from torch import nn\n{body}")
    result = call("check", "mine.py:Mine")
    assert result.exit_code == 1
    assert "mine.py:Mine, checked as a backbone since it is no longspan.attentions.Attention, breaks" in result.stderr


@pytest.mark.parametrize(
    "old, new, promise",
    [
        ("Pattern.NONCAUSAL_SELF", "Pattern.CAUSAL_SELF", "slots"),  # not the pattern the task declares
        ("* weight).sum(dim=1)", ").mean(dim=1)", "batches"),  # padding is part of the mean
        ("self.norms[1](x + self.mlp(x))", "self.norms[1](x)", "gradients"),  # the MLP is never called
    ],
)
def test_check_finds_what_is_wrong_in_a_network(folder, old, new, promise):
    path = folder / "my_backbone.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    result = call("check", NETWORK)
    assert result.exit_code == 1
    assert f"'{promise}'" in result.stderr


LEAK = """
    def splits(self, protocol, root=None, *, real=False):
        from dataclasses import replace
        found = super().splits(protocol, root, real=real)
        return replace(found, train=found.test)
"""


def test_check_finds_examples_that_are_in_training_and_test(folder):
    path = folder / "my_task.py"
    path.write_text(path.read_text() + LEAK)
    result = call("check", "my_task.py:ShallowListOps")
    assert result.exit_code == 1
    assert "breaks 'splits apart'" in result.stderr
    assert "500 of 500 test examples" in " ".join(result.stdout.split())


def test_entry_points_of_an_installed_package_have_plain_names(tmp_path):
    """A real package, installed by pip into a folder of its own."""
    source, target = tmp_path / "source", tmp_path / "installed"
    package = source / "their_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for name in ("my_task.py", "my_backbone.py", "my_attention.py"):
        (package / name).write_text((ROOT / "docs" / name).read_text())
    (source / "pyproject.toml").write_text(
        """
        [build-system]
        requires = ["setuptools"]
        build-backend = "setuptools.build_meta"
        [project]
        name = "their-package"
        version = "1.0"
        [tool.setuptools]
        packages = ["their_package"]
        [project.entry-points."longspan.tasks"]
        shallow = "their_package.my_task:ShallowListOps"
        [project.entry-points."longspan.backbones"]
        post_norm = "their_package.my_backbone:PostNormClassifier"
        """
    )
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*install, "--target", target, source], check=True, capture_output=True)
    program = """
from longspan import tasks
from longspan.launchers.supervisor import is_plugin
from longspan.core.cell import Cell
assert tasks.get("shallow").name == "shallow"
assert tasks.get("listops@post_norm").meta.backbone == "post_norm"
assert is_plugin(Cell("shallow", "softmax")) and is_plugin(Cell("listops@post_norm", "softmax"))
assert "shallow" in tasks.names()
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(target), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
