"""Machine faults: a process is killed, the disk of one node is full. Every cell still gets exactly one card."""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from longspan.launchers import tree
from longspan.results.store import Store
from tests.launchers import hostile, ray_cluster, s3_server
from tests.launchers.test_ray import SET, cards, command
from tests.launchers.waiting import finish, wait_for

pytestmark = pytest.mark.full
ROOT = Path(__file__).parents[2]


def may_mount():
    """Whether disks can be mounted and process namespaces made here; this needs root, and more in a container."""
    known = shutil.which("unshare") is not None
    return known and subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


absent = s3_server.why_not()
if importlib.util.find_spec("ray") is None:
    absent = "ray is not installed; pip install 'longspan[ray]'"
elif not may_mount():
    absent = "a small disk must be mounted, which this user may not do here"


def start(folder, *words, on=(), says=subprocess.PIPE):
    """Start a command in a folder, on this machine or prefixed by the command `on` that enters another one."""
    code = "from longspan.cli import main; main()"
    command = [*on, sys.executable, "-c", code, "run", "listops", "-a", *words, *SET, "--device", "cpu"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "LONGSPAN_COMMIT": "0" * 40}
    how = {"env": environment, "cwd": folder, "text": True, "stdout": subprocess.PIPE, "stderr": says}
    return subprocess.Popen(command, **how)


def test_a_worker_is_killed_in_the_middle_and_its_cell_goes_on_from_the_last_checkpoint(tmp_path):
    held = hostile.write(tmp_path, "held", in_attend=hostile.HELD_LATER)
    run = start(tmp_path, held, "--out", "out")
    wait_for(lambda: list(tmp_path.glob("out/runs/*/checkpoint-*.pt")), "a checkpoint", run)
    (worker,) = tree.children(run.pid)
    os.kill(worker, signal.SIGKILL)
    (tmp_path / "go").touch()
    _, said = finish(run)
    assert run.returncode == 0, said
    assert "its process was ended by SIGKILL" in said
    ((_, card),) = Store(tmp_path / "out" / "cards").entries()
    assert card["timing"]["resumed"] == 1
    whole = start(tmp_path, held, "--out", "whole")
    _, said = finish(whole)
    assert whole.returncode == 0, said
    assert cards(tmp_path / "out") == cards(tmp_path / "whole")


@pytest.mark.skipif(
    not may_mount() or shutil.which("faketime") is None,
    reason="a machine with a wrong clock needs root and faketime; apt-get install faketime",
)
def test_the_clock_of_one_machine_is_a_day_ahead_and_each_cell_is_run_once(tmp_path):
    """A separate process namespace looks like another machine to leases."""
    ahead = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "faketime", "-f", "+1d"]
    words = [hostile.write(tmp_path, "held", in_attend=hostile.HELD), "softmax", "--out", "out"]
    first = start(tmp_path, *words, on=ahead)
    wait_for(lambda: list(tmp_path.glob("out/runs/*/progress.json")), "a cell to be trained", first)
    with (tmp_path / "said").open("w") as says:
        second = start(tmp_path, *words, says=says)
    wait_for(lambda: "is busy with" in (tmp_path / "said").read_text(), "the second to wait for the first", second)
    (tmp_path / "go").touch()
    for machine in (first, second):
        said = finish(machine)
        assert machine.returncode == 0, (said, (tmp_path / "said").read_text())
    assert len(cards(tmp_path / "out")) == 2
    made = [datetime.fromisoformat(card["created"]) for card in Store(tmp_path / "out" / "cards").cards()]
    assert max(made) > datetime.now(UTC) + timedelta(hours=12), made


@contextlib.contextmanager
def small_disk(folder):
    """A disk with space for a few small files."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "longspan-test", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.skipif(absent is not None, reason=absent or "")
def test_the_disk_of_one_node_is_full_and_its_cells_run_on_the_others(tmp_path, monkeypatch):
    log = (tmp_path / "s3.log").open("w")
    with log, s3_server.s3_server(log) as (_, found), small_disk(tmp_path / "small") as small:
        s3_server.read_here(found, tmp_path / "cache", monkeypatch)
        with ray_cluster.cluster(tmp_path, tmp_path / "data", workers=1) as nodes:
            nodes.environment["LONGSPAN_CACHE"] = str(small)
            wait_for(lambda: nodes.join() == 3, "the node with the small disk")
            words = ["listops", "-a", "softmax", "linear", "fnet", "--seeds", "2", *SET, "--out", "s3://arena/full"]
            own = nodes.environment | {"LONGSPAN_CACHE": str(tmp_path / "cache")}
            how = {"env": own, "cwd": tmp_path, "text": True, "capture_output": True}
            done = subprocess.run(command(nodes, *words), check=False, timeout=900, **how)
        assert done.returncode == 0, done.stderr
        assert (small / "stores").exists(), "the small node had cells too"
        found = Store("s3://arena/full/cards").cards()
    assert len(found) == 6
    assert {card["status"] for card in found} == {"ok"}
