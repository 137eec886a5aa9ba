"""Clocks and counters call what they measure as often as they report, and their summaries are correct."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.efficiency import latency
from longspan.efficiency.latency import (
    Spread,
    affordable,
    time_call,
    time_calls,
    time_stretches,
    warm_up,
    without_outliers,
)
from longspan.efficiency.memory import is_out_of_memory, peak_bytes

seconds = st.floats(1e-6, 1e3)


@given(st.lists(seconds, min_size=1, max_size=30))
def test_the_quartiles_enclose_the_median_within_the_readings(readings):
    spread = Spread.of(readings)
    assert min(readings) <= spread.low <= spread.median <= spread.high <= max(readings)
    assert spread.count == len(readings)


@given(st.lists(seconds, min_size=1, max_size=30))
def test_a_rate_turns_slow_into_low(readings):
    spread = Spread.of(readings)
    rate = spread.rate()
    assert rate.low <= rate.median <= rate.high
    assert rate.low * spread.high == pytest.approx(1)
    assert rate.median * spread.median == pytest.approx(1)


@given(cost=st.floats(0, 100), wanted=st.integers(1, 100), budget=st.floats(0.1, 100))
def test_calls_fit_the_time_but_are_never_fewer_than_three(cost, wanted, budget):
    calls = affordable(cost, wanted, seconds=budget)
    assert min(3, wanted) <= calls <= wanted
    assert calls <= 3 or calls * cost <= budget * (1 + 1e-9)


@given(count=st.integers(1, 23), stretches=st.integers(1, 7))
def test_stretches_together_make_exactly_the_calls_asked_for(count, stretches):
    calls = []
    readings = time_stretches(lambda: calls.append(1), "cpu", count=count, stretches=stretches)
    assert len(calls) == count
    assert len(readings) == min(count, stretches)


def test_each_call_has_a_reading_and_a_warm_up_none():
    calls = []
    assert warm_up(lambda: calls.append(1), "cpu", calls=2) >= 0
    assert len(time_calls(lambda: calls.append(1), "cpu", count=4)) == 4
    assert len(calls) == 6


def test_memory_counts_what_lives_at_once_and_what_was_there_before():
    def compute():
        first = torch.ones(1000)
        second = first + 1  # both are alive
        del first
        return second * 2  # two again

    weights = torch.ones(500)
    assert peak_bytes(compute, "cpu") == 2 * 4000
    assert peak_bytes(compute, "cpu", held=[weights, weights[:10]]) == 2 * 4000 + 2000


@pytest.mark.parametrize(
    "error, expected",
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory is what I am not"), False),
    ],
)
def test_out_of_memory_is_told_from_other_errors(error, expected):
    assert is_out_of_memory(error) is expected


@given(st.lists(seconds, min_size=1, max_size=30))
def test_accidents_are_left_out_but_never_the_middle_half(readings):
    kept = without_outliers(readings)
    assert len(kept) >= len(readings) / 2
    spread = Spread.of(readings)
    assert all(reading in kept for reading in readings if spread.low <= reading <= spread.high)


@given(cost=st.floats(1e-6, 2.0), calls=st.integers(1, 16), repeats=st.integers(5, 30))
def test_short_runs_are_read_several_at_a_time_and_long_ones_at_least_five_times(cost, calls, repeats):
    asked = []

    def reading_of(compute, device, *, count):
        asked.append(count)
        compute()
        return [cost * len(runs)] * count

    runs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "warm_up", lambda *_, **__: cost)
        patch.setattr(latency, "time_calls", reading_of)
        timing = time_call(lambda: runs.append(1), "cpu", repeats=repeats, seconds=0.3, warmup=3, calls=calls)
    assert timing.spread.median == pytest.approx(cost / calls)
    assert timing.calls == len(runs) * calls
    assert len(runs) * cost >= latency.READING * (1 - 1e-9)
    assert len(runs) == 1 or (len(runs) - 1) * cost <= latency.READING * (1 + 1e-9)
    assert 5 <= asked[0] <= repeats
    assert asked[0] == 5 or asked[0] * len(runs) * cost <= 0.3 * (1 + 1e-9)
