"""A child process that ends with its parent, and a parent that adopts the orphans of its children (Linux)."""

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # of prctl(2)


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent dies; `parent` is the id of its parent when it was started."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL if sys.platform == "linux" else 0)
    if parent is not None and os.getppid() != parent:  # it died before it could be watched
        os._exit(1)


def adopt_orphans(yes: bool = True) -> None:
    """Children of children whose parent dies become children of this process rather than of the system."""
    _prctl(_SET_CHILD_SUBREAPER, int(yes))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
