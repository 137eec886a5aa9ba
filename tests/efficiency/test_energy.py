"""Energy is counted over a window of seconds; a missing counter is reported in a sentence."""

import pytest

from longspan.efficiency import energy
from longspan.efficiency.energy import WINDOW, can_count, energy_of, why_not


@pytest.fixture
def clock(monkeypatch):
    """A fake device on which a run takes 10 ms and 3 J."""
    now = {"runs": 0}

    class Watch:
        def __init__(self, device):
            self.start = now["runs"]

        def elapsed(self):
            return (now["runs"] - self.start) * 0.01

    class Meter(Watch):
        def joules(self):
            return (now["runs"] - self.start) * 3.0

    monkeypatch.setattr(energy, "Stopwatch", Watch)
    monkeypatch.setattr(energy, "EnergyMeter", Meter)
    return now


def run(now):
    def once():
        now["runs"] += 1

    return once


@pytest.mark.parametrize("guess", [0.01, 0.001, 5.0])
def test_the_window_lasts_long_enough_whatever_the_cost_was_thought_to_be(clock, guess):
    found = energy_of(run(clock), "cuda", cost=guess, calls=4)
    assert found is not None
    assert found.window_seconds >= WINDOW
    assert found.calls == 4 * clock["runs"]
    assert found.joules == pytest.approx(3.0 / 4)


def test_a_cpu_has_no_counter_and_says_so():
    assert not can_count("cpu")
    assert energy_of(lambda: None, "cpu", cost=1.0) is None
    assert "NVIDIA GPU" in why_not("cpu")
    assert "driver" in why_not("cuda")
