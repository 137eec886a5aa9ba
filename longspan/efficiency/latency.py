"""Time of a computation: calls after a warm-up, each timed by itself, and the middle of them with its quartiles.

    cost = warm_up(step, "cuda", calls=3)
    Spread.of(time_calls(step, "cuda", count=affordable(cost, 20, seconds=10))).median

On a GPU two events, stamped by the device itself, enclose each call, so that the host's own pauses between calls do not
count. A CPU has finished when the call returns, so there the clock of the process is read around it.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from longspan.core.meter import Stopwatch, synchronize

LEAST = 3  # readings below which a median and its quartiles say nothing


@dataclass(frozen=True)
class Spread:
    """The middle of several readings, and the quartiles around it."""

    low: float
    median: float
    high: float
    count: int

    @classmethod
    def of(cls, readings: Sequence[float]) -> "Spread":
        """
        >>> Spread.of([3.0, 1.0, 2.0])
        Spread(low=1.5, median=2.0, high=2.5, count=3)
        """
        if len(readings) == 1:
            return cls(readings[0], readings[0], readings[0], 1)
        low, median, high = statistics.quantiles(readings, n=4, method="inclusive")
        return cls(low, median, high, len(readings))

    def rate(self) -> "Spread":
        """Per second, where the readings are seconds; what was slow becomes low."""
        return Spread(1 / self.high, 1 / self.median, 1 / self.low, self.count)


def warm_up(compute: Callable[[], Any], device: str, *, calls: int) -> float:
    """Call it until kernels are chosen, compiled and cached; gives the seconds of the last call."""
    seconds = 0.0
    for _ in range(calls):
        watch = Stopwatch(device)
        compute()
        seconds = watch.elapsed()
    return seconds


def affordable(cost: float, wanted: int, *, seconds: float) -> int:
    """How many calls of this cost fit into the time, up to those wanted, but never fewer than three.

    >>> affordable(0.5, 20, seconds=5.0), affordable(60.0, 20, seconds=5.0), affordable(60.0, 2, seconds=5.0)
    (10, 3, 2)
    """
    if cost * wanted <= seconds:
        return wanted
    return min(wanted, max(LEAST, int(seconds / cost)))


def time_calls(compute: Callable[[], Any], device: str, *, count: int) -> list[float]:
    """Seconds of each of `count` calls, by the device's own events where it has them."""
    if not device.startswith("cuda"):
        return [_seconds(compute, device) for _ in range(count)]
    marks = []
    synchronize(device)
    for _ in range(count):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        compute()
        end.record()
        marks.append((start, end))
    synchronize(device)
    return [start.elapsed_time(end) / 1e3 for start, end in marks]


def time_stretches(compute: Callable[[], Any], device: str, *, count: int, stretches: int = 5) -> list[float]:
    """Wall-clock seconds per call over stretches of calls; the device is waited for at the end of a stretch only."""
    sizes = [count * (i + 1) // stretches - count * i // stretches for i in range(stretches)]
    return [_seconds(compute, device, calls=size) / size for size in sizes if size]


def _seconds(compute: Callable[[], Any], device: str, calls: int = 1) -> float:
    watch = Stopwatch(device)
    for _ in range(calls):
        compute()
    return watch.elapsed()
