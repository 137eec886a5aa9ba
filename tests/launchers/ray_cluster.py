"""A real Ray cluster on this machine: a head and worker nodes as separate processes, each with one processor core."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.launchers.waiting import PATIENCE, wait_for

ROOT = Path(__file__).parents[2]


class Cluster:
    """Nodes in separate processes, which can be killed one by one."""

    def __init__(self, folder: Path, data: Path):
        self.folder = folder
        self.environment = os.environ | {
            "LONGSPAN_COMMIT": "0" * 40,  # the same everywhere, even if the checkout changes meanwhile
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "LONGSPAN_DATA": str(data),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # else cells starve on a machine that has other work
            "RAY_AUTH_MODE": "token",  # for this cluster only, not the user's other ones
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        self.nodes: list[subprocess.Popen] = []
        self.joined: list[subprocess.Popen] = []  # the head, and worker nodes that it knows
        self.address = ""

    def start(self, *words: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1", *words]
        log = (self.folder / f"node{len(self.nodes)}.log").open("w")
        node = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)
        self.nodes.append(node)
        return node

    def join(self) -> int:
        """How many nodes have joined; restarts the last one if it gave up, as happens on a busy machine."""
        if self.nodes[-1] in self.joined or self.nodes[-1].poll() is not None:
            self.start("--address", self.address)
        if (size := _size(self)) > len(self.joined):
            self.joined.append(self.nodes[-1])
        return size

    def kill(self, node: subprocess.Popen) -> None:
        """All processes of a node die at once, as if its power were cut."""
        with contextlib.suppress(ProcessLookupError):
            for pid in _below(node.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        node.wait()


def _below(root: int) -> list[int]:
    """A process and all its descendants, parents before children."""
    from longspan.launchers import tree

    return sorted(tree.descendants({root}))


@contextlib.contextmanager
def cluster(folder: Path, data: Path, workers: int = 2):
    """A head and worker nodes; all of them are gone after the block."""
    place = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # a short path, as socket paths are limited
    nodes = Cluster(folder, data)
    try:
        head = nodes.start("--head", "--port", "0", "--include-dashboard", "false", "--temp-dir", place)
        nodes.address = wait_for(lambda: _read(Path(place) / "ray_current_cluster"), "the head of the cluster", head)
        nodes.joined.append(head)
        for count in range(2, workers + 2):  # one after another: two that start at once pick the same ports
            wait_for(lambda count=count: nodes.join() == count, f"{count} nodes")
        yield nodes
    finally:
        for node in nodes.nodes:
            if node.poll() is None:
                nodes.kill(node)
        shutil.rmtree(place, ignore_errors=True)


def _read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _size(nodes: Cluster) -> int:
    """How many nodes the head knows."""
    code = "import ray, sys; ray.init(sys.argv[1], logging_level='ERROR', log_to_driver=False)\n"
    code += "print(sum(node['Alive'] for node in ray.nodes()))"
    command = [sys.executable, "-c", code, nodes.address]
    how = {"capture_output": True, "text": True, "env": nodes.environment, "check": False, "timeout": PATIENCE}
    done = subprocess.run(command, **how)
    return int(done.stdout) if done.returncode == 0 else 0
