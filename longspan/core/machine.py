"""How others that share its folders know this machine, and how old their files are by the clock of the store."""

import functools
import hashlib
import os
import socket
import tempfile
import uuid
from pathlib import Path

LONG_AGO = 3600.0  # seconds without a write after which what another machine left counts as abandoned


@functools.cache
def machine() -> str:
    """This machine since it was started, or this container: its processes see one another's locks and ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return f"{socket.gethostname()}:{uuid.getnode():x}"


@functools.cache
def tag() -> str:
    """A short name of this machine, for the names of temporaries."""
    return f"m{hashlib.sha256(machine().encode()).hexdigest()[:8]}"


def seconds_since_written(path: Path) -> float:
    """By the clock that stamps the files of this folder, not by that of this machine; 0 if that is impossible."""
    try:
        with tempfile.TemporaryFile(dir=path.parent) as now:
            return os.fstat(now.fileno()).st_mtime - path.stat().st_mtime
    except OSError:
        return 0.0
