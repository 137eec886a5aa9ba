"""Leases: of many machines that share a folder one at a time holds the lease, which is taken over when it is dead.

The lease of `lock` is a file beside it, `.lock.3.lease`; the highest number counts. Its holder rewrites it every few
seconds. A waiting process takes over when the file has not changed for a while *by its own clock*, so that clocks that
disagree do no harm; it creates the next number, which only one process can. A holder that was merely slow then finds
that its lease is lost, and must stop. The lease of a dead process of this machine is taken over at once. For a folder
that mirrors a bucket (`mirror.py`), the lease is an object in the bucket.
"""

import contextlib
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from longspan.core.errors import LongspanError, StorageError
from longspan.core.machine import LONG_AGO, machine, seconds_since_written
from longspan.core.mirror import in_bucket

BEAT = 15.0  # seconds between two heartbeats
PATIENCE = 150.0  # without one: a store may be unreachable for a minute, and NFS may show a file as it was a minute ago


class LeaseLost(LongspanError):
    """Another process took over, since there had been no heartbeat for long."""

    exit_code = 4


@dataclass(frozen=True)
class Lease:
    """Held by the process that took it, and by children it is given to."""

    path: Path
    token: str
    locked: bool  # its holder has the kernel's lock too, which it loses only by dying

    def check(self) -> None:
        """Raise LeaseLost if another process has taken over."""
        found = _newest(_lock_of(self.path))
        if found is None or found[0] != self.path or not found[1].startswith(self.token.encode()):
            by = "no one" if found is None else holder(found[1])
            raise LeaseLost(f"{self.path.parent.name} was taken over ({by}) while this process gave no sign of life.")

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Send heartbeats until the block ends, then give the lease back."""
        ended = threading.Event()
        beating = threading.Thread(target=self._beat, args=(ended,), daemon=True)
        beating.start()
        try:
            yield
        finally:
            ended.set()
            beating.join()
            with contextlib.suppress(OSError, StorageError):  # the store is unreachable: the next process has to wait
                if _read(self.path).startswith(self.token.encode()):
                    _remove(self.path)

    def content(self, beat: int) -> bytes:
        """Always of one length, so that it can be overwritten in place."""
        who = {"host": socket.gethostname(), "machine": machine(), "pid": os.getpid(), "locked": self.locked}
        return f"{self.token} {beat:012d}\n{json.dumps(who)}\n".encode()

    def _beat(self, ended: threading.Event) -> None:
        beat = 0
        while not ended.wait(BEAT):
            beat += 1
            with contextlib.suppress(OSError, StorageError):  # what cannot be reached now may be by the next beat
                _rewrite(self.path, self.token.encode(), self.content(beat))


class Watch:
    """What a process that wants a lease has seen of it so far."""

    def __init__(self, lock: Path):
        self.lock = lock
        self._seen: tuple[Path, bytes] | None = None
        self._silent = self._looked = 0.0  # seconds without a heartbeat, and when that was last checked

    @property
    def holder(self) -> str | None:
        """Who holds it, if that is on another machine."""
        if self._seen is None or _words(self._seen[1]).get("machine") == machine():
            return None
        return holder(self._seen[1])

    def look(self, *, alone_here: bool | None) -> bool:
        """Whether the lease can be taken.

        `alone_here`: no other process of this machine has the kernel's lock; None where that cannot be known.
        """
        found, now = _newest(self.lock), time.monotonic()
        # While this process was stopped, or waited for the store, a heartbeat could not be seen, or not be sent.
        self._silent = self._silent + min(now - self._looked, BEAT) if found == self._seen else 0.0
        self._seen, self._looked = found, now
        if found is None:
            return alone_here is not False  # the lock's holder is about to take the lease, or has just given it back
        if self._silent > PATIENCE:
            return True
        words = _words(found[1])
        if words.get("machine") == machine():
            # Two users of this machine have a mirror each: for a bucket the kernel's lock says nothing about the other.
            left = bool(alone_here and words["locked"]) and in_bucket(self.lock) is None
            return left or _is_dead(words["pid"])
        return bool(alone_here) and seconds_since_written(found[0]) > LONG_AGO

    def take(self, *, locked: bool) -> Lease | None:
        """The lease, unless another process was quicker or its holder has sent a heartbeat at the last moment.

        `locked`: this process has the kernel's lock too.
        """
        old = self._seen
        path = _place(self.lock, 1 if old is None else _number(old[0]) + 1)
        lease = Lease(path, uuid.uuid4().hex, locked)
        try:
            _create(path, lease.content(0))
        except (FileExistsError, FileNotFoundError):  # or its folder was removed
            return None
        newest = _newest(self.lock)
        if newest is None or newest[0] != path or (old is not None and _read(old[0]) != old[1]):
            _remove(path)
            return None
        if old is not None:
            _remove(old[0])
        return lease


def holder(content: bytes) -> str:
    """Who holds a lease, for a sentence."""
    words = _words(content)
    return f"Process {words['pid']} on {words['host']}" if words else "Another process"


def _words(content: bytes) -> dict[str, object]:
    """What a lease says about its holder; empty if it is damaged."""
    try:
        words = json.loads(content.split(b"\n")[1])
        return {name: words[name] for name in ("host", "machine", "pid")} | {"locked": words.get("locked", True)}
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}


def _is_dead(pid: object) -> bool:
    """Whether this machine has no such process."""
    try:
        os.kill(pid if isinstance(pid, int) and pid > 0 else os.getpid(), 0)
    except ProcessLookupError:
        return True
    except OSError:  # of another user
        return False
    return False


def _place(lock: Path, number: int) -> Path:
    return lock.with_name(f".{lock.name}.{number}.lease")


def _number(path: Path) -> int:
    return int(path.name.split(".")[-2])


def _lock_of(path: Path) -> Path:
    return path.with_name(".".join(path.name[1:].split(".")[:-2]))


def _newest(lock: Path) -> tuple[Path, bytes] | None:
    """The lease that counts, with its content."""
    name = re.compile(rf"\.{re.escape(lock.name)}\.[1-9][0-9]{{0,17}}\.lease")
    found = [path for path in _beside(lock) if name.fullmatch(path.name)]
    if not found:
        return None
    newest = max(found, key=_number)
    return newest, _read(newest)


def _beside(lock: Path) -> list[Path]:
    """What lies beside a lock, on disk or in a bucket."""
    if (shared := in_bucket(lock.parent)) is not None:
        bucket, folder = shared
        return [lock.with_name(name.rpartition("/")[2]) for name in bucket.sizes(folder)]
    try:
        return list(lock.parent.iterdir())
    except FileNotFoundError:
        return []


def _read(path: Path) -> bytes:
    if (shared := in_bucket(path)) is not None:
        return shared[0].get(shared[1]) or b""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _create(path: Path, content: bytes) -> None:
    """Create a lease, or FileExistsError: of several processes that try, one succeeds."""
    if (shared := in_bucket(path)) is not None:
        if not shared[0].create(shared[1], content):
            raise FileExistsError(path)
        return
    try:
        _write(path, content, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        raise
    except OSError:  # a full disk
        path.unlink(missing_ok=True)
        raise


def _rewrite(path: Path, token: bytes, content: bytes) -> None:
    """Overwrite the lease of this token; one that was removed stays removed, or in a bucket a higher number counts.

    After a long sleep, all may have been cleared away, and another process may hold a new lease of the same number.
    """
    if (shared := in_bucket(path)) is not None:
        if (shared[0].get(shared[1]) or b"").startswith(token):
            shared[0].put(shared[1], content)
        return
    _write(path, content, os.O_RDWR, over=token)


def _remove(path: Path) -> None:
    if (shared := in_bucket(path)) is not None:
        shared[0].remove(shared[1])
    else:
        path.unlink(missing_ok=True)


def _write(path: Path, content: bytes, flags: int, *, over: bytes = b"") -> None:
    """Write a file; with `over`, only if it begins with these bytes."""
    handle = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        if not over or os.pread(handle, len(over), 0) == over:
            os.pwrite(handle, content, 0)
            os.fsync(handle)
    finally:
        os.close(handle)
