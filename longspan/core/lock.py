"""A lock between processes, of one machine or of several that share the folder.

Between processes of one machine it is a kernel lock, so that it is released even after kill -9; between machines it is
a lease (`lease.py`), so that it also works where files cannot be locked. The kernel's lock belongs to the open file,
which a forked child would share and keep locked after its parent has died; a child therefore closes what it inherits.
The holder writes its process id into the file, for those who wait to read.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from longspan.core.lease import Lease, Watch
from longspan.core.printable import printable

POLL, POLL_AFAR = 0.1, 2.0  # seconds between two tries while this machine, or another one, holds it
_held: set[int] = set()


class Busy(Exception):
    """Another process holds the lock."""

    def __init__(self, holder: str):
        super().__init__(holder)
        self.holder = holder


@contextlib.contextmanager
def only_one(path: Path, what: str, *, wait: bool = True) -> Iterator[Lease]:
    """Hold the lock file `path`. While another process holds it, wait, with a line on stderr, or raise Busy.

    A process that holds it for long checks now and then that the lease is still its own.
    """
    told, watch = False, Watch(path)
    while True:
        _make(path.parent)
        with _locked_here(path) as (handle, alone):
            if handle is None:
                continue
            lease = watch.take(locked=alone is True) if watch.look(alone_here=alone) else None
            if lease is not None:
                if alone:
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
                with lease.kept():
                    yield lease
                return
            holder = watch.holder or _holder(handle)
        if not wait:
            raise Busy(holder)
        if not told:
            print(printable(f"{holder} is busy with {what}; waiting for it."), file=sys.stderr, flush=True)
            told = True
        time.sleep(POLL_AFAR if watch.holder else POLL)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:  # also raised if it was removed at the same moment
        if any(os.path.lexists(one) and not one.is_dir() for one in (folder, *folder.parents)):
            raise  # a file, or a link to nothing


@contextlib.contextmanager
def _locked_here(path: Path) -> Iterator[tuple[int | None, bool | None]]:
    """The open lock file, None if it was removed just now, and whether no other process of this machine holds it.

    Where files cannot be locked that is unknown: None.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:  # its folder was removed
        yield None, None
        return
    _held.add(handle)
    try:
        alone = _try(handle)
        yield handle if not alone or _is_still(handle, path) else None, alone
    finally:
        _held.discard(handle)
        os.close(handle)


def _try(handle: int) -> bool | None:
    """Whether this process has the kernel's lock now; None where locking is not supported."""
    try:
        import fcntl
    except ImportError:  # not on this system
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # not on this disk
        return None
    return True


def _holder(handle: int) -> str:
    said = os.pread(handle, 32, 0).strip()
    return f"Process {int(said)}" if said.isdigit() else "Another process"


def _is_still(handle: int, path: Path) -> bool:
    """Whether the locked file is still the one at this path: its last holder may have removed it."""
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
