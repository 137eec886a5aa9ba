"""Clocks and counters call what they measure as often as they say, and their summaries are what they claim."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.efficiency.latency import Spread, affordable, time_calls, time_stretches, warm_up
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
        second = first + 1  # both live
        del first
        return second * 2  # again two

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
