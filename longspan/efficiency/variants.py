"""The ways in which the same calls are run: one by one (eager), or captured once and replayed (a CUDA graph).

    run = eager(work.calls)            # each run is one call, on the next inputs in turn
    run = captured(work.calls)         # each run replays a call on every set of inputs

A replay launches everything at once, so that only the work of the device is timed. Capturing as many calls as there are
sets of inputs keeps the caches as cold as in eager mode, and makes a replay long compared with the clock's resolution.
"""

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from longspan.core.cuda_graph import aside, record

WARM_UPS = 2  # calls before capture: kernels are chosen, compiled and loaded, none of which can be captured


@dataclass(frozen=True)
class Runner:
    """What is timed, and how many calls that is."""

    run: Callable[[], Any]
    calls: int = 1


def eager(calls: Sequence[Callable[[], Any]]) -> Runner:
    turn = itertools.cycle(calls)
    return Runner(lambda: next(turn)())


def captured(calls: Sequence[Callable[[], Any]]) -> Runner:
    """Capture the calls in one CUDA graph; raises torch's error where something in them cannot be captured."""
    with aside(torch.cuda.Stream()):
        for _ in range(WARM_UPS):
            calls[0]()
        with _refusing_to_wait():
            calls[0]()
    replay, _ = record(lambda: _each(calls))
    return Runner(replay, len(calls))


def _each(calls: Sequence[Callable[[], Any]]) -> None:
    """One after another; no result is kept beyond the next call."""
    for call in calls:
        call()


@contextlib.contextmanager
def _refusing_to_wait() -> Iterator[None]:
    """Raise where the host synchronises with the device: harmless here, but during capture it may break the process."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)
