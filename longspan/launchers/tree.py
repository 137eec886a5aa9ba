"""A process with all its descendants: which they are, how much memory they use, how to stop and end them.

Linux shows all of it in /proc; a descendant whose parent has died is found because this process adopts it. Elsewhere
only the process group of the root is known, and its memory is not.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROC = Path("/proc")


def children(pid: int) -> set[int]:
    """The direct children of a process; none where the system does not list them."""
    found: set[int] = set()
    for thread in _listed(PROC / str(pid) / "task"):
        found.update(map(int, _read(thread / "children").split()))
    return found


def descendants(roots: set[int]) -> set[int]:
    """These processes and all below them."""
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children(pid)
    return found


def memory_bytes(pids: set[int], limit: int) -> int:
    """Memory of processes, without mapped files; if it seems to be over the limit, shared pages are counted once."""
    total = sum(_fields(_read(PROC / str(pid) / "status"), ("RssAnon:", "RssShmem:")) for pid in pids)
    if total <= limit or len(pids) == 1:
        return total
    return sum(_fields(_read(PROC / str(pid) / "smaps_rollup"), ("Pss_Anon:", "Pss_Shmem:")) for pid in pids) or total


def send(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end(root: int, adopted: "Adopted", patience: float = 10.0) -> None:
    """Kill a process group and everything below it, and return when it is gone."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        found = {pid for pid in descendants({root} | adopted.now()) if _is_alive(pid)}
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(root, signal.SIGSTOP)  # so that none starts another meanwhile
        send(found, signal.SIGSTOP)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(root, signal.SIGKILL)
        send(found, signal.SIGKILL)
        adopted.reap()
        if not found - {root}:
            return
        time.sleep(0.01)


class Adopted:
    """The children of this process, except those it had before and those it started itself.

    A child is started and noted under a lock, so that no other thread takes it for an orphan.
    """

    def __init__(self) -> None:
        self.own = children(os.getpid())
        self._noting = threading.Lock()

    def start(self, command: list[str], **how: Any) -> subprocess.Popen:
        """Start a child that is not taken for an orphan."""
        with self._noting:
            process = subprocess.Popen(command, **how)
            self.own.add(process.pid)
        return process

    def now(self) -> set[int]:
        with self._noting:
            return children(os.getpid()) - self.own

    def reap(self) -> None:
        for pid in self.now():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _fields(text: str, names: tuple[str, ...]) -> int:
    """The sum of some lines of the form `RssAnon:   12 kB`, in bytes."""
    return 1024 * sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(names))


def _is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    state = _read(PROC / str(pid) / "stat").rpartition(")")[2].split()
    return bool(state) and state[0] not in "ZX"


def _listed(folder: Path) -> Iterator[Path]:
    try:
        yield from list(folder.iterdir())
    except OSError:  # gone meanwhile, or no such system
        return


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
