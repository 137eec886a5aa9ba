"""Clocks and memory counters that are right on every device: the device is synchronised before a clock is read."""

import resource
import sys
import time
from collections.abc import Callable


class Stopwatch:
    """Seconds of device-complete work since the start or the last `lap`.

    >>> watch = Stopwatch("cpu")
    >>> watch.elapsed() >= 0
    True
    """

    def __init__(self, device: str = "cpu"):
        self.device = device
        self.restart()

    def restart(self) -> None:
        synchronize(self.device)
        self._start = time.perf_counter()

    def elapsed(self) -> float:
        synchronize(self.device)
        return time.perf_counter() - self._start


def synchronize(device: str) -> None:
    if str(device).startswith("cuda"):
        import torch

        torch.cuda.synchronize()


def reset_peak_memory(device: str) -> None:
    if str(device).startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats()


def peak_memory_bytes(device: str) -> int:
    """Most bytes held so far: by tensors on a GPU, by the whole process on a CPU."""
    if str(device).startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class EnergyMeter:
    """Joules that a GPU has used since the meter was made, by its own counter; None where there is no such counter."""

    def __init__(self, device: str):
        self._read = _energy_counter() if str(device).startswith("cuda") else None
        self._start = None if self._read is None else self._read()

    def joules(self) -> float | None:
        return None if self._read is None or self._start is None else (self._read() - self._start) / 1e3


def _energy_counter() -> Callable[[], float] | None:
    """A function that reads the millijoules of the first GPU; drivers and cards without a counter have none."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError:
        return None
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
