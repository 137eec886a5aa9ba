"""Waiting for a state that another process brings about, however loaded the machine is; never for ever."""

import subprocess
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 600.0  # seconds: far more than anything here takes, and less than the time limit of the test job


def wait_for(found: Callable[[], Any], what: str, process: subprocess.Popen | None = None) -> Any:
    """Wait until `found()` is truthy and return it; fails if the process that should bring it about has ended."""
    deadline = time.monotonic() + PATIENCE
    while not (result := found()):
        assert process is None or process.poll() is None, (f"ended before {what}", process.communicate())
        assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s for {what}"
        time.sleep(0.1)
    return result


def finish(process: subprocess.Popen) -> tuple[str, str]:
    """Wait for a process to end and return its output; one that does not end is killed."""
    try:
        return process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"had not ended after {PATIENCE:.0f} s", process.communicate()) from None
