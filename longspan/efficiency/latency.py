"""Time of a computation: calls after a warm-up, each timed by itself; their median and quartiles.

    cost = warm_up(step, "cuda", calls=3)
    Spread.of(time_calls(step, "cuda", count=affordable(cost, 20, seconds=10))).median
    time_call(step, "cuda", repeats=20, seconds=0.3, warmup=3).spread.median      # all of it, also for short calls

On a GPU each call lies between two CUDA events, so that the host's own pauses between calls are not measured. A CPU has
finished when the call returns, so there the process clock is read around it.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from longspan.core.meter import Stopwatch, synchronize

LEAST = 3  # with fewer readings a median and its quartiles say nothing
READING = 1e-3  # least seconds of a reading, so that neither the clock's resolution nor its own cost matters
WARM = 0.03  # seconds of work before the first reading, so that a GPU leaves its idle clock frequency
FENCE = 3.0  # a reading more than this many interquartile ranges beyond a quartile is an outlier


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of several readings."""

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
        """Rates per second from readings in seconds; `low` and `high` change places."""
        return Spread(1 / self.high, 1 / self.median, 1 / self.low, self.count)


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the spread of the readings that were kept, and how they were taken."""

    spread: Spread
    dropped: int  # readings left out as outliers
    calls: int  # in each reading


def time_call(
    run: Callable[[], Any], device: str, *, repeats: int, seconds: float, warmup: int, calls: int = 1, least: int = 5
) -> Timing:
    """Time a run that consists of `calls` calls: up to `repeats` readings within the seconds, but at least `least`.

    Where a run is short, a reading covers several in a row.
    """
    cost = warm_up(run, device, calls=warmup, seconds=WARM)
    together = max(1, math.ceil(READING / cost))

    def reading() -> None:
        for _ in range(together):
            run()

    count = affordable(cost * together, repeats, seconds=seconds, least=least)
    readings = [taken / (together * calls) for taken in time_calls(reading, device, count=count)]
    kept = without_outliers(readings)
    return Timing(Spread.of(kept), len(readings) - len(kept), together * calls)


def without_outliers(readings: Sequence[float]) -> list[float]:
    """The readings within three interquartile ranges of the quartiles.

    >>> without_outliers([1.0, 1.1, 1.2, 1.1, 9.0])
    [1.0, 1.1, 1.2, 1.1]
    """
    spread = Spread.of(readings)
    room = FENCE * (spread.high - spread.low)
    return [reading for reading in readings if spread.low - room <= reading <= spread.high + room]


def warm_up(compute: Callable[[], Any], device: str, *, calls: int, seconds: float = 0.0) -> float:
    """Call it until kernels are chosen, compiled and cached and the time is up; returns seconds of the fastest call."""
    whole, taken = Stopwatch(device), []
    while len(taken) < calls or whole.elapsed() < seconds:
        taken.append(_seconds(compute, device))
    return min(taken)


def affordable(cost: float, wanted: int, *, seconds: float, least: int = LEAST) -> int:
    """How many calls of this cost fit into the time, up to those wanted, but never fewer than the least.

    >>> affordable(0.5, 20, seconds=5.0), affordable(60.0, 20, seconds=5.0), affordable(60.0, 2, seconds=5.0)
    (10, 3, 2)
    """
    if cost * wanted <= seconds:
        return wanted
    return min(wanted, max(least, int(seconds / cost)))


def time_calls(compute: Callable[[], Any], device: str, *, count: int) -> list[float]:
    """Seconds of each of `count` calls, by CUDA events on a GPU."""
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
    """Wall-clock seconds per call over several calls in a row, synchronising only after the last of them."""
    sizes = [count * (i + 1) // stretches - count * i // stretches for i in range(stretches)]
    return [_seconds(compute, device, calls=size) / size for size in sizes if size]


def _seconds(compute: Callable[[], Any], device: str, calls: int = 1) -> float:
    watch = Stopwatch(device)
    for _ in range(calls):
        compute()
    return watch.elapsed()
