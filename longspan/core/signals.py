"""Signals that ask a run to stop: Ctrl-C, and what schedulers send before they end a job.

with raised():                      # a signal raises Stopped at once
    with deferred() as stop:        # ... but not in here, where it waits until the state is saved
        while not done:
            step()
            if stop.asked:
                save()
                stop.now()
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))
SAME = 1.0  # seconds within which a repeated signal is the same request: schedulers signal every process of a job


class Stopped(KeyboardInterrupt):
    """A signal asked the run to stop; `number` says which."""

    def __init__(self, number: int):
        super().__init__(f"KeyboardInterrupt by {signal.Signals(number).name}")
        self.number = number


class Deferred:
    """A request to stop that waits until the loop has saved its state."""

    def __init__(self, pass_on: Callable[[int], None] | None = None) -> None:
        self.number: int | None = None
        self._pass_on = pass_on
        self._since = 0.0
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        return self.number is not None

    def now(self) -> NoReturn:
        """Do what the signal would have done before it was deferred; at the least, stop."""
        number = signal.SIGINT if self.number is None else self.number
        if number in self._before:
            signal.signal(number, self._before[number])
            signal.raise_signal(number)
        raise Stopped(number)

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked and time.monotonic() - self._since < SAME:
            return
        again, self.number, self._since = self.asked, number, time.monotonic()
        if self._pass_on is not None:
            self._pass_on(number)
        elif again:
            self.now()


@contextlib.contextmanager
def deferred(pass_on: Callable[[int], None] | None = None) -> Iterator[Deferred]:
    """Inside the block a signal sets `asked`; a second one stops at once. Signals that are ignored stay ignored.

    With `pass_on` every signal is passed to it, and its receivers decide when to stop.
    """
    request = Deferred(pass_on)
    with _handled(request._ask) as request._before:
        yield request


@contextlib.contextmanager
def raised(numbers: tuple[int, ...] = SIGNALS) -> Iterator[None]:
    """Inside the block a signal raises Stopped, which distinguishes it from a KeyboardInterrupt of a plug-in."""

    def stop(number: int, frame: Any) -> None:
        raise Stopped(number)

    with _handled(stop, numbers):
        yield


@contextlib.contextmanager
def _handled(handler: Any, numbers: tuple[int, ...] = SIGNALS) -> Iterator[dict[int, Any]]:
    """These signals go to `handler` inside the block; yields the handlers they had before."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # no other thread receives signals
        before = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield before
    finally:
        for number, old in before.items():
            signal.signal(number, old)
