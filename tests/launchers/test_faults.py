"""What happens to machines: a process is killed, the disk of one node is full. Every cell has one card all the same."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longspan.core import mirror
from longspan.launchers import tree
from longspan.results.store import Store
from tests.launchers import ray_cluster, s3_server
from tests.launchers.test_ray import SET, cards, command

pytestmark = pytest.mark.full
ROOT = Path(__file__).parents[2]
absent = s3_server.why_not()
if importlib.util.find_spec("ray") is None:
    absent = "ray is not installed; pip install 'longspan[ray]'"
elif os.getuid() != 0:
    absent = "a small disk is mounted by root, and this is another user"


def test_a_worker_is_killed_in_the_middle_and_its_cell_goes_on_from_the_last_checkpoint(tmp_path):
    code = "from longspan.cli import main; main()"
    words = ["run", "listops", "-a", "softmax", *SET, "--device", "cpu"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    how = {"env": environment, "cwd": tmp_path, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    run = subprocess.Popen([sys.executable, "-c", code, *words, "--out", "out"], **how)
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob("out/runs/*/checkpoint-*.pt")):
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (worker,) = tree.children(run.pid)
    os.kill(worker, signal.SIGKILL)
    _, said = run.communicate(timeout=300)
    assert run.returncode == 0, said
    assert "its process was ended by SIGKILL" in said
    ((_, card),) = Store(tmp_path / "out" / "cards").entries()
    assert card["timing"]["resumed"] == 1
    subprocess.run([sys.executable, "-c", code, *words, "--out", "whole"], check=True, **how)
    assert cards(tmp_path / "out") == cards(tmp_path / "whole")


@contextlib.contextmanager
def small_disk(folder):
    """A disk with room for a few small files."""
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
        for name in found.keys() - os.environ.keys():
            monkeypatch.setenv(name, found[name])
        monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "cache"))
        mirror._address.cache_clear()
        with ray_cluster.cluster(tmp_path, tmp_path / "data", workers=1) as nodes:
            nodes.environment["LONGSPAN_CACHE"] = str(small)
            ray_cluster._wait(lambda: nodes.join() == 3)
            words = ["listops", "-a", "softmax", "linear", "fnet", "--seeds", "2", *SET, "--out", "s3://arena/full"]
            own = nodes.environment | {"LONGSPAN_CACHE": str(tmp_path / "cache")}
            how = {"env": own, "cwd": tmp_path, "text": True, "capture_output": True}
            done = subprocess.run(command(nodes, *words), check=False, timeout=900, **how)
        assert done.returncode == 0, done.stderr
        assert (small / "stores").exists(), "the small node had cells too"
        found = Store("s3://arena/full/cards").cards()
    assert len(found) == 6
    assert {card["status"] for card in found} == {"ok"}
