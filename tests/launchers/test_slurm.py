"""Cells as jobs of a real Slurm: pre-empted or out of time, each has one card, and it says what `local` says."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longspan.results.store import Store
from tests.launchers import hostile
from tests.launchers.slurm_cluster import slurm, why_not
from tests.launchers.test_isolation import longspan
from tests.launchers.test_ray import cards

absent = why_not()
if importlib.util.find_spec("submitit") is None:
    absent = "submitit is not installed; pip install 'longspan[slurm]'"
pytestmark = [pytest.mark.full, pytest.mark.skipif(absent is not None, reason=absent or "")]

ROOT = Path(__file__).parents[2]
SMALL = {"recipe.steps": 200, "recipe.evaluate_every": 20, "recipe.batch_size": 8, "data.train": 256, "data.valid": 16}
SMALL |= {"data.test": 16, "data.shorter_than": 100, "model.dim": 16, "model.layers": 1, "model.mlp": 16}
SET = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
SLEEP = "import time; time.sleep(0.75 if self.training and len(q) == 8 else 0)"  # in updates, not in checks
MECHANISMS = ("softmax", "linear", "local", "performer", "fnet", "cosformer", "abc")


@pytest.fixture(scope="module")
def cluster():
    with slurm() as environment:
        yield environment


def shell(environment, *words):
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout


def others_running(environment):
    """The nodes of all jobs that are running but for the first of the array."""
    lines = shell(environment, "squeue", "--noheader", "--array", "--states=R", "--format=%K %N").splitlines()
    return [node for job, node in map(str.split, lines) if job != "0"]


def is_training(out):
    """Whether a cell of a built-in mechanism is."""
    begun = (json.loads(path.read_text()) for path in out.glob("runs/*/begun.json"))
    return any(card["mechanism"] in MECHANISMS for card in begun)


def test_a_job_is_pre_empted_another_runs_out_of_time_and_every_card_is_that_of_local(cluster, tmp_path):
    slow = hostile.write(tmp_path, "slow", in_attend=SLEEP)
    words = ["listops", "-a", slow, *MECHANISMS, *SET, "--device", "cpu"]
    environment = cluster | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "LONGSPAN_DATA": str(tmp_path / "data")}
    command = [sys.executable, "-c", "from longspan.cli import main; main()", "run", *words, "--launcher", "slurm"]
    command += [word for name in ("time=3", "signal_delay_s=60", "partition=usual") for word in ("--set-slurm", name)]
    how = {"env": environment, "cwd": tmp_path, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    driver = subprocess.Popen([*command, "--out", "out"], **how)
    try:
        deadline = time.monotonic() + 300
        while not (others := others_running(environment)) or not is_training(tmp_path / "out"):
            assert driver.poll() is None, driver.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        where = [f"--nodelist={others[0]}", "--partition=urgent", f"--output={os.devnull}"]
        shell(environment, "sbatch", *where, "--wrap", "sleep 3")
        said = driver.communicate(timeout=900)
    finally:
        driver.kill()
    assert driver.returncode == 0, said
    jobs = shell(environment, "scontrol", "show", "jobs", "--oneliner")
    jobs = re.findall(r"ArrayTaskId=(\d+) .*?Restarts=(\d+)", jobs)
    again = {int(job) for job, restarts in jobs if int(restarts)}
    assert 0 in again, "the slow cell ran out of time"
    assert len(again) >= 2, "another was pre-empted"
    local = longspan("run", *words, "--out", "local", cwd=tmp_path)
    assert local.returncode == 0, local.stderr
    theirs = cards(tmp_path / "local")
    assert len(theirs) == 8
    assert cards(tmp_path / "out") == theirs
    timings = {card["title"]: card["timing"]["resumed"] for _, card in Store(tmp_path / "out" / "cards").entries()}
    assert timings["Mine"] >= 1


def test_ctrl_c_takes_all_jobs_back(cluster, tmp_path):
    slow = hostile.write(tmp_path, "slow", in_attend=SLEEP)
    environment = cluster | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "LONGSPAN_DATA": str(tmp_path / "data")}
    command = [sys.executable, "-c", "from longspan.cli import main; main()", "run", "listops", "-a", slow, *SET]
    command += ["--seeds", "4", "--device", "cpu", "--launcher", "slurm", "--set-slurm", "time=10", "--out", "out"]
    command += ["--cells-per-job", "2"]
    driver = subprocess.Popen(command, env=environment, cwd=tmp_path, text=True, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 300
        while not list((tmp_path / "out" / "runs").glob("*/begun.json")):
            assert driver.poll() is None, driver.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        driver.send_signal(2)
        _, said = driver.communicate(timeout=120)
    finally:
        driver.kill()
    assert driver.returncode == 130, said
    while shell(environment, "squeue", "--noheader").strip():
        assert time.monotonic() < deadline, "jobs are left"
        time.sleep(0.5)
    assert not list((tmp_path / "out" / "cards").rglob("*.json"))
    assert list((tmp_path / "out" / "runs").glob("*/checkpoint-*.pt")), "the state was saved"
