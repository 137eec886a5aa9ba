"""A lock between processes, held by the kernel, so that it is released even after kill -9.

It belongs to the open file, which a forked child would share and keep locked after its parent has died; a child
therefore closes what it inherits. The holder writes its process id into the file, for those who wait to read.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from longspan.core.printable import printable

_held: set[int] = set()


class Busy(Exception):
    """Another process holds the lock."""

    def __init__(self, holder: str):
        super().__init__(holder)
        self.holder = holder


@contextlib.contextmanager
def only_one(path: Path, what: str, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock file `path`. While another process holds it, wait, with a line on stderr, or raise Busy."""
    try:
        import fcntl
    except ImportError:  # no flock on this system; data stays intact without it, since folders appear by rename
        yield
        return
    told = False
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        _held.add(handle)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _holder(handle)
                if not wait:
                    raise Busy(holder) from None
                if not told:
                    print(printable(f"{holder} is busy with {what}; waiting for it."), file=sys.stderr, flush=True)
                    told = True
                fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_still(handle, path):
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
                yield
                return
        finally:
            _held.discard(handle)
            os.close(handle)


def _holder(handle: int) -> str:
    said = os.pread(handle, 32, 0).strip()
    return f"Process {int(said)}" if said.isdigit() else "Another process"


def _is_still(handle: int, path: Path) -> bool:
    """Whether the file that was locked is the one of this name: its last holder may have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _forget() -> None:
    """In a forked child: the lock is its parent's alone."""
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
