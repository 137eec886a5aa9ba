"""Clocks and memory counters that are right on every device: the device is synchronised before a clock is read."""

import resource
import sys
import time
from collections.abc import Callable
from typing import Any


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
        self._gpu = _first_gpu() if str(device).startswith("cuda") else None
        self._start = self._read()

    def joules(self) -> float | None:
        now = self._read()
        return None if now is None or self._start is None else (now - self._start) / 1e3

    def _read(self) -> float | None:
        return _ask(self._gpu, lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu))


class Neighbours:
    """Whether other processes were seen on the GPU, whenever one looked; None where that cannot be seen."""

    def __init__(self, device: str):
        self._gpu = _first_gpu() if str(device).startswith("cuda") else None
        self.seen: bool | None = None

    def look(self) -> None:
        processes = _ask(self._gpu, lambda nvml, gpu: nvml.nvmlDeviceGetComputeRunningProcesses(gpu))
        if processes is not None:
            self.seen = bool(self.seen) or len(processes) > 1


def _first_gpu() -> tuple[Any, Any] | None:
    """NVIDIA's library and its handle of the first GPU, where there are both."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
    except pynvml.NVMLError:
        return None


def _ask(gpu: tuple[Any, Any] | None, question: Callable[[Any, Any], Any]) -> Any:
    """The answer of the driver, or None: drivers and cards differ in what they can tell."""
    if gpu is None:
        return None
    nvml, handle = gpu
    try:
        return question(nvml, handle)
    except nvml.NVMLError:
        return None
