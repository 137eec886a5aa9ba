"""A signal is deferred until the state is saved, then takes its usual effect."""

import signal
import subprocess
import sys
import threading

import pytest

from longspan.core import signals
from longspan.core.signals import Stopped, deferred, raised


@pytest.mark.parametrize("number", signals.SIGNALS)
def test_a_signal_is_asked_about_and_raised_later(number):
    with raised(), deferred() as stopping:
        signal.raise_signal(number)
        assert stopping.asked
        with pytest.raises(Stopped) as stop:
            stopping.now()
    assert stop.value.number == number


def test_a_second_signal_stops_at_once(monkeypatch):
    monkeypatch.setattr(signals, "SAME", 0.0)
    with deferred() as stopping:
        signal.raise_signal(signal.SIGINT)
        assert stopping.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_signal_sent_to_every_process_and_passed_on_is_one_request():
    with deferred() as stopping:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert stopping.asked


def test_in_a_thread_signals_are_left_alone():
    handlers = []

    def inside():
        with deferred() as stopping:
            handlers.append((signal.getsignal(signal.SIGINT), stopping.asked))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert handlers == [(before, False)]


def test_a_deferred_sigterm_ends_a_process_as_sigterm_does():
    program = (
        "import signal\nfrom longspan.core.signals import deferred\n"
        "with deferred() as stopping:\n    signal.raise_signal(signal.SIGTERM)\n    print('saved', flush=True)\n"
        "    stopping.now()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("saved\n", -signal.SIGTERM)
