"""A cell cannot harm its neighbour: what a plug-in does is said on its card, and the others end as if run alone."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longspan import runs
from longspan.results.store import Store
from tests.launchers import hostile

ROOT = Path(__file__).parents[2]
TINY = {"recipe.steps": 2, "recipe.evaluate_every": 1, "recipe.batch_size": 4, "data.train": 8, "data.valid": 4}
TINY |= {"data.test": 8, "model.dim": 8, "model.layers": 1, "model.mlp": 8}
torch.set_num_threads(1)
SET = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]


def longspan(*words, cwd, **settings):
    command = [sys.executable, "-c", "from longspan.cli import main; main()", *map(str, words)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "LONGSPAN_DATA": str(cwd / "data")}
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=cwd, check=False, timeout=900, **settings
    )


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def outcomes(out):
    """For every mechanism, the results on its card and hashes of the files beside it."""
    found = {}
    for path, card in Store(out / "cards").entries():
        files = {
            name: hashlib.sha256(path.with_name(file).read_bytes()).hexdigest() for name, file in card["files"].items()
        }
        parts = ("status", "score", "metrics", "curve", "selected_step", "parameters", "dataset")
        found[card["mechanism"]] = {name: card[name] for name in parts} | {"files": files}
    return found


def failures(out):
    cards = Store(out / "cards").cards(superseded=True)
    return {card["mechanism"].split(".")[0]: card["reason"] for card in cards if card["status"] == "fail"}


def matrix(folder, harm, *limits, honest):
    """Honest cells among hostile ones: the result of the command, after comparing them with runs on their own."""
    for number, mechanism in enumerate(honest):
        cell = runs.Cell("listops", mechanism.replace("honest", str(folder / "honest")), overrides=TINY)
        runs.run(cell, out=folder / f"lone{number}", data=folder / "data", device="cpu", progress=False)
    names = [hostile.write(folder, name, **what) for name, what in harm.items()]
    done = longspan("run", "listops", "-a", *names, *honest, *SET, *limits, "--out", "out", cwd=folder)
    together = outcomes(folder / "out")
    for number in range(len(honest)):
        (lone,) = outcomes(folder / f"lone{number}").items()
        assert together[lone[0]] == lone[1]
        assert lone[1]["status"] == "ok"
    return done


def test_an_honest_cell_beside_a_hostile_one_equals_its_lone_run(tmp_path):
    harm = {"quits": {"at_import": hostile.PATCHES, "in_attend": "import os; os._exit(7)"}}
    done = matrix(tmp_path, harm, honest=["softmax"])
    assert done.returncode == 4, done.stderr
    assert "1 of 2 cells failed." in done.stderr
    assert failures(tmp_path / "out") == {"quits": "its process ended with exit code 7"}


@pytest.mark.full
def test_six_cells_four_of_them_hostile(tmp_path):
    harm = {
        "dies": {"in_attend": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"},
        "hangs": {"in_attend": "import time; time.sleep(3600)"},
        "eats": {"in_attend": hostile.FORKS},
        "patches": {"at_import": hostile.PATCHES, "in_attend": hostile.MOVES},
    }
    honest = ["softmax", hostile.write(tmp_path, "honest")]
    done = matrix(tmp_path, harm, "--time-limit", "15s", "--memory-limit", "700M", honest=honest)
    assert done.returncode == 4, done.stderr
    assert "4 of 6 cells failed." in done.stderr
    reasons = failures(tmp_path / "out")
    assert reasons["dies"] == "its process was ended by SIGSEGV"
    assert reasons["hangs"].startswith("it took longer than the time limit of 15 s")
    assert "over the memory limit of 700 MiB" in reasons["eats"]
    assert reasons["patches"] == "SystemExit: 3"


@pytest.mark.full
def test_a_dead_rank_ends_all_ranks_with_a_sentence(tmp_path):
    dies = 'import os\n        if os.environ.get("LOCAL_RANK") == "1": os._exit(5)'
    name = hostile.write(tmp_path, "rank", in_attend=dies)
    done = longspan("run", "listops", "-a", name, *SET, "--device", "cpu", "--devices", 2, "--out", "out", cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    reason = "process 1 of 2 ended with exit code 5, which ended the others"
    assert f"listops {name} seed 0 failed: {reason}" in done.stderr
    assert failures(tmp_path / "out") == {"rank": reason}


@pytest.mark.full
def test_an_import_that_ends_its_process_is_a_card_and_the_others_are_run(tmp_path):
    name = hostile.write(tmp_path, "ends", at_import="import os; os._exit(9)")
    done = longspan("run", "listops", "-a", name, "softmax", *SET, "--out", "out", cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    assert failures(tmp_path / "out") == {"ends": "its process ended with exit code 9"}
    assert outcomes(tmp_path / "out")["softmax"]["status"] == "ok"
