"""Cells as jobs of a real Slurm: pre-empted or out of time, each has one card, equal to the one from `local`."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from longspan.results.store import Store
from tests.launchers import hostile
from tests.launchers.slurm_cluster import slurm, why_not
from tests.launchers.test_isolation import longspan
from tests.launchers.test_ray import cards
from tests.launchers.waiting import finish, wait_for

absent = why_not()
if importlib.util.find_spec("submitit") is None:
    absent = "submitit is not installed; pip install 'longspan[slurm]'"
pytestmark = [pytest.mark.full, pytest.mark.skipif(absent is not None, reason=absent or "")]

ROOT = Path(__file__).parents[2]
SMALL = {"recipe.steps": 400, "recipe.evaluate_every": 40, "recipe.batch_size": 8, "data.train": 256, "data.valid": 16}
SMALL |= {"data.test": 16, "data.shorter_than": 100, "model.dim": 16, "model.layers": 1, "model.mlp": 16}
SET = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
MECHANISMS = ("softmax", "linear", "local", "performer", "fnet", "cosformer")


@pytest.fixture(scope="module")
def cluster():
    with slurm() as environment:
        yield environment


@pytest.fixture
def start(cluster, tmp_path):
    """Start a command that submits jobs; drivers still running at the end are killed."""
    started = []

    def start(*words):
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "LONGSPAN_DATA": str(tmp_path / "data")}
        own |= {"LONGSPAN_COMMIT": "0" * 40}  # even if the checkout changes meanwhile
        command = [sys.executable, "-c", "from longspan.cli import main; main()", "run", "listops", *words, *SET]
        command += ["--device", "cpu", "--launcher", "slurm", "--out", "out"]
        how = {"cwd": tmp_path, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, env=cluster | own, **how))
        return started[-1]

    yield start
    for driver in started:
        driver.kill()


def shell(environment, *words):
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=300).stdout


def jobs(environment):
    """Every job that was started, by its array index: its number, how often it was requeued, its node."""
    lines = shell(environment, "scontrol", "show", "jobs", "--oneliner")
    found = re.findall(r"^JobId=(\d+) .*?ArrayTaskId=(\d+) .*?Restarts=(\d+) .*? NodeList=(\S*)", lines, re.MULTILINE)
    return {int(place): (number, int(restarts), node) for number, place, restarts, node in found}


def shorten(environment, number):
    """Cut the time limit of a running job so that it ends in one to two minutes."""
    elapsed = shell(environment, "squeue", "--noheader", f"--jobs={number}", "--format=%M").strip()
    *larger, minutes, _ = map(int, re.split("[-:]", elapsed))
    assert not any(larger), f"the job has been running for {elapsed}"
    shell(environment, "scontrol", "update", f"JobId={number}", f"TimeLimit={minutes + 2}")


def test_a_job_is_pre_empted_another_runs_out_of_time_and_every_card_is_that_of_local(cluster, start, tmp_path):
    held = [hostile.write(tmp_path, name, in_attend=hostile.HELD) for name in ("out_of_time", "pre_empted")]
    words = ["-a", *held, *MECHANISMS]
    asked = ("time=60", "signal_delay_s=60", "partition=usual")
    driver = start(*words, *(word for one in asked for word in ("--set-slurm", one)))
    wait_for(lambda: len(list(tmp_path.glob("out/runs/*/progress.json"))) == 2, "two cells to be trained", driver)
    (first, _, _), (_, _, node) = jobs(cluster)[0], jobs(cluster)[1]
    shorten(cluster, first)
    where = [f"--nodelist={node}", "--partition=urgent", "--output=/dev/null"]
    shell(cluster, "sbatch", *where, "--wrap", "true")
    for place in (1, 0):
        wait_for(lambda place=place: jobs(cluster)[place][1], f"job {place} to be queued again", driver)
    shell(cluster, "scontrol", "update", f"JobId={first}", "TimeLimit=60")
    (tmp_path / "go").touch()
    said = finish(driver)
    assert driver.returncode == 0, said
    assert {place: restarts for place, (_, restarts, _) in jobs(cluster).items() if restarts} == {0: 1, 1: 1}
    local = longspan("run", "listops", *words, *SET, "--device", "cpu", "--out", "local", cwd=tmp_path)
    assert local.returncode == 0, local.stderr
    theirs = cards(tmp_path / "local")
    assert len(theirs) == 8
    assert cards(tmp_path / "out") == theirs
    resumed = {card["mechanism"]: card["timing"]["resumed"] for card in Store(tmp_path / "out" / "cards").cards()}
    assert sorted(resumed.values()) == [0] * 6 + [1, 1], resumed


def test_ctrl_c_takes_all_jobs_back(cluster, start, tmp_path):
    held = hostile.write(tmp_path, "held", in_attend=hostile.HELD)
    driver = start("-a", held, "--seeds", "4", "--set-slurm", "time=10", "--cells-per-job", "2")
    wait_for(lambda: list(tmp_path.glob("out/runs/*/progress.json")), "a cell to be trained", driver)
    driver.send_signal(2)
    _, said = finish(driver)
    assert driver.returncode == 130, said
    wait_for(lambda: not shell(cluster, "squeue", "--noheader").strip(), "all jobs to leave the queue")
    assert not list((tmp_path / "out" / "cards").rglob("*.json"))
    assert list((tmp_path / "out" / "runs").glob("*/checkpoint-*.pt")), "the state was saved"
