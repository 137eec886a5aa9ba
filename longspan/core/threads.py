"""How many threads torch computes with on a CPU, how many compilers it starts, and threads of lower priority."""

import contextlib
import os
import sys
from collections.abc import Iterator

from longspan.core.environment import available_cpus

COMPILERS = "TORCHINDUCTOR_COMPILE_THREADS"


def share_compilers(processes: int) -> dict[str, str]:
    """The environment variables for each of that many processes, so that together they start one compiler per core.

    By default ten processes on sixteen cores start 160, each of which imports torch.
    """
    if processes <= 1 or COMPILERS in os.environ:
        return {}
    return {COMPILERS: str(max(1, available_cpus() // processes))}


def lower_priority() -> None:
    """Lower the priority of this thread, so that threads that feed a device are not kept waiting.

    Only on Linux, where a thread has a priority of its own.
    """
    if sys.platform == "linux":
        os.nice(10)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Tiny operations are faster on one thread, and sums are the same on any number of cores."""
    import torch  # not at module level: reading cards needs no torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
