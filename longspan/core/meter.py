"""Clocks, memory and energy counters. The device is synchronised before a clock is read."""

import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


class Stopwatch:
    """Seconds since the start or the last `restart`, with all work on the device finished.

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
    """Peak memory so far: of tensors on a GPU, of the whole process on a CPU."""
    if str(device).startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class EnergyMeter:
    """Joules used by a GPU since the meter was created, by the GPU's own counter; None if it has no such counter."""

    def __init__(self, device: str):
        self._gpu = _first_gpu() if str(device).startswith("cuda") else None
        self._start = self._read()

    def joules(self) -> float | None:
        now = self._read()
        return None if now is None or self._start is None else (now - self._start) / 1e3

    def _read(self) -> float | None:
        return _ask(self._gpu, lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu))


class Neighbours:
    """Whether `look` ever saw other processes on the GPU; None if the driver does not say."""

    def __init__(self, device: str):
        self._gpu = _first_gpu() if str(device).startswith("cuda") else None
        self.seen: bool | None = None

    def look(self) -> None:
        processes = _ask(self._gpu, lambda nvml, gpu: nvml.nvmlDeviceGetComputeRunningProcesses(gpu))
        if processes is not None:
            self.seen = bool(self.seen) or len(processes) > 1


def gpu_name() -> str | None:
    """The name of the first GPU, from its driver and not from torch; None if there is none."""
    name = _ask(_first_gpu(), lambda nvml, gpu: nvml.nvmlDeviceGetName(gpu))
    return name.decode() if isinstance(name, bytes) else name


def _first_gpu() -> tuple[Any, Any] | None:
    """NVML and its handle of the first GPU that this process may use, if both exist."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
        if first.startswith("GPU-"):
            return pynvml, pynvml.nvmlDeviceGetHandleByUUID(first)
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdigit() else 0)
    except pynvml.NVMLError:
        return None


def _ask(gpu: tuple[Any, Any] | None, question: Callable[[Any, Any], Any]) -> Any:
    """The driver's answer, or None if this driver or GPU does not support the query."""
    if gpu is None:
        return None
    nvml, handle = gpu
    try:
        return question(nvml, handle)
    except nvml.NVMLError:
        return None
