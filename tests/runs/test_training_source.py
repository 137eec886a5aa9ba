"""Which code a checkpoint belongs to: all that trains its cell, and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from longspan.runs import Cell, training_source
from longspan.runs.cell import RunPlan
from tests.runs.test_runs import PLUGIN, TINY

PACKAGE = Path(training_source.__file__).parents[1]
AROUND = {  # what a run loads besides: to watch it, and softmax, with which parameters are compared
    *(f"longspan.core.{name}" for name in ("audit", "parent", "pulse", "threads")),
    *("longspan.training.display", "longspan.attentions.released"),
    *("longspan.attentions.softmax", "longspan.kernels.sdpa"),
}
TRAINS = """
import json, sys
from longspan import runs
cell = runs.Cell("listops", "performer", None, "longspan", "smoke", overrides=json.loads(sys.argv[3]))
runs.run(cell, out=sys.argv[1], data=sys.argv[2], device="cpu", progress=False)
print(json.dumps([name for name in sys.modules if name.startswith("longspan.")]))
"""
HASHES = """
import sys
from longspan.runs import Cell, training_source
from longspan.runs.cell import RunPlan
plan = lambda mechanism: RunPlan.of(Cell("listops", mechanism, None, "longspan", "smoke"))
for other in sys.argv[1:]:
    plan(other).model()
print(training_source.training_source(plan("performer")))
"""


def plan(mechanism="performer", task="listops"):
    return RunPlan.of(Cell(task, mechanism, None, "longspan", "smoke"))


def fresh(script, *words):
    """What a script prints in a new process."""
    how = {"env": os.environ | {"PYTHONPATH": str(PACKAGE.parent)}, "text": True, "capture_output": True}
    return subprocess.run([sys.executable, "-c", script, *words], check=True, **how).stdout.splitlines()[-1]


@pytest.fixture
def hash_where(monkeypatch, tmp_path):
    """The hash of a cell in a copy of the package, in which the end of a file says something else."""

    def hash_where(changed=None, **cell):
        with monkeypatch.context() as patch:
            edited = tmp_path / "edited.py"
            if changed is not None:
                edited.write_bytes((PACKAGE / changed).read_bytes() + b"\nEDITED = True\n")
            file_of = training_source._file_of

            def found(module):
                path = file_of(module)
                return edited if changed is not None and path == PACKAGE / changed else path

            patch.setattr(training_source, "_file_of", found)
            training_source._read.cache_clear()
            return training_source.training_source(plan(**cell))

    yield hash_where
    training_source._read.cache_clear()


@pytest.mark.parametrize(
    "file",
    [
        "training/loop.py",
        "training/optimizer.py",
        "training/gradient.py",
        "runs/fabric.py",
        "tasks/base.py",
        "tasks/classification.py",
        "backbones/encoder_block.py",
        "kernels/favor/triton.py",
        "kernels/favor/reference.py",
        "attentions/base.py",
        "datasets/listops.py",
        "core/seeding.py",
        "kernels/__init__.py",
    ],
)
def test_a_change_of_what_trains_the_cell_changes_the_hash(hash_where, file):
    assert (PACKAGE / file).is_file()
    assert hash_where(file) != hash_where()


@pytest.mark.parametrize(
    "file",
    [
        "attentions/softmax.py",
        "kernels/lsh_attention/__init__.py",
        "tasks/lm.py",
        "backbones/pointr.py",
        "conformance/cost.py",
        "results/board.py",
        "report/build.py",
        "cli/run.py",
    ],
)
def test_a_change_elsewhere_does_not(hash_where, file):
    assert (PACKAGE / file).is_file()
    assert hash_where(file) == hash_where()


def test_slots_that_are_not_replaced_count_too(hash_where):
    translation = {"mechanism": "performer", "task": "tts_transformer"}
    assert hash_where("kernels/sdpa.py", **translation) != hash_where(**translation)


def test_every_module_that_training_loads_counts(tmp_path):
    words = [str(tmp_path / "out"), str(tmp_path / "data"), json.dumps(TINY)]
    loaded = {name: path for name in json.loads(fresh(TRAINS, *words)) if (path := training_source._file_of(name))}
    own = ["longspan.tasks.listops", "longspan.attentions.performer"]
    counted = training_source._texts([*training_source.ROOTS, *own])
    left_out = {name for name, path in loaded.items() if path.read_bytes() not in counted}
    assert loaded.keys() >= {*own, "longspan.kernels.favor.reference"}
    assert left_out <= AROUND


def test_what_was_loaded_before_does_not_matter():
    assert fresh(HASHES) == fresh(HASHES, "softmax", "s4d", "bigbird")


def test_the_source_of_a_plug_in_counts_with_the_kernels_that_it_imports(tmp_path, hash_where):
    def mine(body, name):
        (tmp_path / name).write_text(PLUGIN.format(body=body))
        return f"{tmp_path / name}:Mine"

    here, other = mine("pass", "a.py"), mine("v = 0.5 * v", "b.py")
    imports = mine("from longspan.kernels import running_topk", "c.py")
    assert training_source.training_source(plan(here)) != training_source.training_source(plan(other))
    changed = "kernels/running_topk/__init__.py"
    assert hash_where(changed, mechanism=imports) != hash_where(mechanism=imports)
    assert hash_where(changed, mechanism=here) == hash_where(mechanism=here)
