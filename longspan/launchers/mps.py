"""NVIDIA's multi-process service, through which several processes compute on one GPU at the same time.

Without it they take turns. For cells of small networks on an H200 it was worth 1.3 times the throughput.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
GAIN = 1.3  # throughput of cells that share a GPU through it, over one after another
PATIENCE = 60.0  # seconds for the service to start or to end


@contextlib.contextmanager
def multi_process_service(wanted: bool = True) -> Iterator[bool]:
    """Processes started in the block share the GPU through the service; False where this machine has none.

    A service that the user has started is used and left running.
    """
    control = shutil.which(CONTROL)
    if not wanted or control is None:
        yield False
        return
    if os.environ.get(PIPE):
        yield True
        return
    with tempfile.TemporaryDirectory(prefix="longspan-mps-") as folder:  # a short path: it holds sockets
        places = {PIPE: f"{folder}/pipe", LOG: f"{folder}/log"}
        for place in places.values():
            Path(place).mkdir()
        if fault := _ask(control, places, "-d"):
            print(f"Cells share the GPU without {CONTROL}, which did not start: {fault}", file=sys.stderr, flush=True)
            yield False
            return
        before = {name: os.environ.get(name) for name in places}
        os.environ.update(places)
        try:
            yield True
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
            _ask(control, places, said="quit\n")


def _ask(control: str, places: dict[str, str], *words: str, said: str = "") -> str | None:
    """What went wrong, in a line; None if nothing did."""
    how = {"capture_output": True, "text": True, "timeout": PATIENCE, "check": False}
    try:
        done = subprocess.run([control, *words], env=os.environ | places, input=said, **how)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return " ".join((done.stderr or done.stdout).split())[:200] or f"exit code {done.returncode}"
