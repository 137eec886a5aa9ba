"""Energy of a call, from the GPU's own energy counter, over seconds of repeating the same call.

The counter is updated every few hundredths of a second, so a window lasts at least two seconds. It covers the whole
board, idle power included.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from longspan.core.meter import EnergyMeter, Stopwatch

WINDOW = 2.0  # seconds
LOOKS = 10  # clock readings within a window; each one synchronises with the device


@dataclass(frozen=True)
class Energy:
    """Joules of one call, with the number of calls and the length of the window they were measured over."""

    joules: float
    window_seconds: float
    calls: int


def energy_of(run: Callable[[], Any], device: str, *, cost: float, calls: int = 1) -> Energy | None:
    """Repeat a run of `calls` calls, which takes about `cost` seconds, over a window; None without a counter."""
    if not can_count(device):
        return None
    stretch = math.ceil(WINDOW / LOOKS / cost)
    watch, meter, runs = Stopwatch(device), EnergyMeter(device), 0
    while (elapsed := watch.elapsed()) < WINDOW or not runs:
        for _ in range(stretch):
            run()
        runs += stretch
    joules = meter.joules()
    return None if joules is None else Energy(joules / (runs * calls), elapsed, runs * calls)


def can_count(device: str) -> bool:
    return EnergyMeter(device).joules() is not None


def why_not(device: str) -> str:
    """Why energy cannot be measured on this device, in one sentence."""
    if not device.startswith("cuda"):
        return "Energy is not measured: only an NVIDIA GPU has a counter that is read here; the rest is measured."
    return (
        "Energy is not measured: the driver gave no energy counter, or nvidia-ml-py is not installed; "
        "the rest is measured."
    )
