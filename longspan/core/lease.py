"""Leases: of many machines that share a folder one at a time holds something, and is relieved when it is dead.

The lease of `lock` is a file beside it, `.lock.3.lease`; the highest number counts. Its holder rewrites it every few
seconds. One who waits takes over when the file has not changed for a while *by its own clock*, so that clocks that
disagree do no harm; it creates the next number, which only one can. A holder that was merely slow then finds that its
lease is lost, and must stop. A dead process of this machine is relieved at once.
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

from longspan.core.errors import LongspanError
from longspan.core.machine import LONG_AGO, machine, seconds_since_written

BEAT = 15.0  # seconds between two signs of life
PATIENCE = 150.0  # without one: a store may be unreachable for a minute, and NFS may show a file as it was a minute ago


class LeaseLost(LongspanError):
    """Another took over, since no sign of life had come for long."""

    exit_code = 4


@dataclass(frozen=True)
class Lease:
    """Held by the process that took it, and by children it is given to."""

    path: Path
    token: str

    def check(self) -> None:
        """Raise LeaseLost where another has taken over."""
        found = _newest(_lock_of(self.path))
        if found is None or found[0] != self.path or not found[1].startswith(self.token.encode()):
            by = "no one" if found is None else holder(found[1])
            raise LeaseLost(f"{self.path.parent.name} was taken over ({by}) while this process gave no sign of life.")

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Give signs of life until the block ends, then give the lease back."""
        ended = threading.Event()
        beating = threading.Thread(target=self._beat, args=(ended,), daemon=True)
        beating.start()
        try:
            yield
        finally:
            ended.set()
            beating.join()
            with contextlib.suppress(OSError):  # a store that is gone: the next one waits
                if self.path.read_bytes().startswith(self.token.encode()):
                    self.path.unlink()

    def _beat(self, ended: threading.Event) -> None:
        beat = 0
        while not ended.wait(BEAT):
            beat += 1
            with contextlib.suppress(OSError):  # a store that cannot be reached now may be reached by the next beat
                _write(self.path, _content(self.token, beat), os.O_WRONLY)  # never creates a file that was removed


class Watch:
    """What one who wants a lease has seen of it so far."""

    def __init__(self, lock: Path):
        self.lock = lock
        self._seen: tuple[Path, bytes] | None = None
        self._since = 0.0

    @property
    def holder(self) -> str | None:
        """Who holds it, if that is on another machine."""
        if self._seen is None or _words(self._seen[1]).get("machine") == machine():
            return None
        return holder(self._seen[1])

    def look(self, *, alone_here: bool) -> bool:
        """Whether the lease can be taken; `alone_here` says that no other process of this machine holds the lock."""
        found = _newest(self.lock)
        if found != self._seen:
            self._seen, self._since = found, time.monotonic()
        if found is None or time.monotonic() - self._since > PATIENCE:
            return True
        if _words(found[1]).get("machine") == machine():
            return alone_here or _is_dead(_words(found[1])["pid"])
        return alone_here and seconds_since_written(found[0]) > LONG_AGO

    def take(self) -> Lease | None:
        """The lease, unless another was quicker, or its holder has given a sign of life in the last moment."""
        old = self._seen
        path = _place(self.lock, 1 if old is None else _number(old[0]) + 1)
        lease = Lease(path, uuid.uuid4().hex)
        try:
            _write(path, _content(lease.token, 0), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return None
        except OSError:
            path.unlink(missing_ok=True)
            raise
        newest = _newest(self.lock)
        if newest is None or newest[0] != path or (old is not None and _read(old[0]) != old[1]):
            path.unlink(missing_ok=True)
            return None
        if old is not None:
            old[0].unlink(missing_ok=True)
        return lease


def holder(content: bytes) -> str:
    """Who holds a lease, for a sentence."""
    words = _words(content)
    return f"Process {words['pid']} on {words['host']}" if words else "Another process"


def _content(token: str, beat: int) -> bytes:
    """Always of one length for one token, so that it can be written over."""
    who = {"host": socket.gethostname(), "machine": machine(), "pid": os.getpid()}
    return f"{token} {beat:012d}\n{json.dumps(who)}\n".encode()


def _words(content: bytes) -> dict[str, object]:
    """What a lease says of its holder; nothing where it is damaged."""
    try:
        words = json.loads(content.split(b"\n")[1])
        return {name: words[name] for name in ("host", "machine", "pid")}
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
    try:
        found = [path for path in lock.parent.iterdir() if name.fullmatch(path.name)]
    except FileNotFoundError:
        return None
    if not found:
        return None
    newest = max(found, key=_number)
    return newest, _read(newest)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _write(path: Path, content: bytes, flags: int) -> None:
    handle = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        os.pwrite(handle, content, 0)
        os.fsync(handle)
    finally:
        os.close(handle)
