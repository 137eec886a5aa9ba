"""How many threads torch computes with on a CPU."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Tiny operations are faster on one thread, and sums are the same on any number of cores."""
    import torch  # not with the package: who reads cards needs none

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
