"""CUDA graphs: work that is captured once and replayed without launch overhead on the host."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


def record(compute: Callable[[], Any], **how: Any) -> tuple[Callable[[], None], Any]:
    """Capture `compute`; returns the function that replays it and its static output tensors. Nothing is computed yet.

    `how` is passed to `torch.cuda.graph`. If the capture fails, torch's error is raised and the random number generator
    is usable again.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    before = generator.clone_state()
    try:
        with torch.cuda.graph(graph, **how):
            outcome = compute()
    except BaseException:
        generator.graphsafe_set_state(before)  # else it stays in capture mode for ever
        raise
    return graph.replay, outcome


@contextlib.contextmanager
def aside(stream: Any) -> Iterator[None]:
    """Run the block on a side stream, as a capture must not use the default one.

    Each stream waits for the other, after an error too: else memory freed afterwards could be reused while a kernel
    still reads it.
    """
    import torch

    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        torch.cuda.current_stream().wait_stream(stream)
