"""A piece of work as a CUDA graph: recorded once, replayed without the host. One home for the rules of recording."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


def record(compute: Callable[[], Any], **how: Any) -> tuple[Callable[[], None], Any]:
    """How to do it again, and the tensors in which the outcome then lies; nothing is computed yet.

    `how` goes to `torch.cuda.graph`. What cannot be recorded raises what torch raises, and random numbers work as ever.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    before = generator.clone_state()
    try:
        with torch.cuda.graph(graph, **how):
            outcome = compute()
    except BaseException:
        generator.graphsafe_set_state(before)  # else it waits for the end of a recording that never comes
        raise
    return graph.replay, outcome


@contextlib.contextmanager
def aside(stream: Any) -> Iterator[None]:
    """Work on this stream, not on that of everyone else, which a recording must not touch.

    Each waits for the other, after an error too: whoever frees the inputs next would have them overwritten under a
    running kernel.
    """
    import torch

    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        torch.cuda.current_stream().wait_stream(stream)
