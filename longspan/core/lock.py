"""A lock between processes, held by the kernel, so that it is released even after kill -9."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from longspan.core.printable import printable


@contextlib.contextmanager
def only_one(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path`; wait, with a line on stderr, while another process holds it."""
    try:
        import fcntl
    except ImportError:  # no flock on this system; data stays intact without it, since folders appear by rename
        yield
        return
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(printable(f"Another process is busy with {what}; waiting for it."), file=sys.stderr, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
