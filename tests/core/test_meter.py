"""Clocks and counters report nothing rather than a wrong number."""

import sys
import types

import pytest

from longspan.core import meter


class NVMLError(Exception):
    pass


def fake_nvml(readings):
    """A driver whose energy counter returns these millijoules in turn; an empty list means no counter."""
    module = types.ModuleType("pynvml")
    readings = iter(readings)

    def read(handle):
        for value in readings:
            return value
        raise NVMLError("not supported")

    vars(module).update(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetTotalEnergyConsumption=read,
    )
    return module


def test_energy_is_the_difference_of_two_readings_in_joules(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([5_000, 7_500]))
    assert meter.EnergyMeter("cuda").joules() == 2.5


@pytest.mark.parametrize("module", [None, fake_nvml([])])
def test_without_a_counter_there_is_no_figure(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert meter.EnergyMeter("cuda").joules() is None


@pytest.mark.parametrize("looks, shared", [([1, 1], False), ([1, 2, 1], True), ([], None)])
def test_a_gpu_is_shared_when_another_process_was_seen_on_it_once(monkeypatch, looks, shared):
    module = fake_nvml([])
    counts = iter(looks)
    vars(module).update(nvmlDeviceGetComputeRunningProcesses=lambda handle: [object()] * next(counts))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    neighbours = meter.Neighbours("cuda")
    for _ in looks:
        neighbours.look()
    assert neighbours.seen is shared


def test_a_cpu_has_no_energy_counter_here():
    assert meter.EnergyMeter("cpu").joules() is None


def test_a_stopwatch_never_runs_backwards():
    watch = meter.Stopwatch("cpu")
    first = watch.elapsed()
    assert 0 <= first <= watch.elapsed()
    assert meter.peak_memory_bytes("cpu") > 2**20
