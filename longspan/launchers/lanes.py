"""Several cells at once on one device, each in a process of its own, until there is none left or the time is up.

    with Lanes(4, Limits.parse(None, None), Budget(1500.0), out="out", device="auto", shared=True) as lanes:
        for cell, outcome in lanes.run(take):        # take(seconds left) is the next cell, or None

Small networks leave most of a large GPU idle. Their scores do not depend on who shares it; their times do.
"""

import contextlib
import dataclasses
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from longspan.core.cell import Cell
from longspan.core.signals import SIGNALS, Stopped
from longspan.launchers.limits import Limits
from longspan.launchers.local import Launcher, Outcome
from longspan.launchers.tree import Adopted

SAVING = 15.0  # seconds at the end of a budget for saving states, a twentieth of it at most

Take = Callable[[float | None], Cell | None]


class Budget:
    """Wall-clock seconds for all cells together, counted from now; None is no limit."""

    def __init__(self, seconds: float | None = None):
        self.seconds = seconds
        self.deadline = None if seconds is None else time.monotonic() + seconds - min(SAVING, seconds / 20)

    def left(self) -> float | None:
        """Seconds before cells are stopped."""
        return None if self.deadline is None else self.deadline - time.monotonic()


class Lanes:
    """As many supervisors as cells may run at once; `how` are the arguments of `runs.run`.

    `slowdown` is how many times longer a cell is expected to take among the others than alone.
    """

    def __init__(
        self, count: int, limits: Limits, budget: Budget, *, slowdown: float = 1.0, debug: bool = False, **how: Any
    ):
        memory = None if limits.memory_bytes is None else limits.memory_bytes // count
        each, adopted = dataclasses.replace(limits, memory_bytes=memory), Adopted()
        common = {"debug": debug, "deadline": budget.deadline, "adopted": adopted}
        self.budget, self.slowdown = budget, slowdown
        self.launchers = [Launcher(each, **common, **how) for _ in range(count)]
        self._open = contextlib.ExitStack()
        self._stopped: int | None = None

    def __enter__(self) -> "Lanes":
        for launcher in self.launchers:
            self._open.enter_context(launcher)
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def plan(self, cells: Sequence[Cell]) -> None:
        """Refuse a wrong request before anything is trained."""
        self.launchers[0].plan(cells)

    def run(self, take: Take) -> Iterator[tuple[Cell, Outcome]]:
        """Each cell with what became of it, as they end."""
        if len(self.launchers) == 1:
            while (cell := self._next(take)) is not None:
                yield cell, self.launchers[0].run(cell)
            return
        ended: queue.Queue[tuple[Cell, Outcome] | BaseException | None] = queue.Queue()
        turn = threading.Lock()
        lanes = [threading.Thread(target=self._work, args=(one, take, turn, ended)) for one in self.launchers]
        with self._stopping_all():
            for lane in lanes:
                lane.start()
            errors, working = [], len(lanes)
            while working:
                found = ended.get()
                if isinstance(found, tuple):
                    yield found
                    continue
                working -= 1
                if found is not None:
                    errors.append(found)
            for lane in lanes:
                lane.join()
        if errors:
            raise errors[0]

    def _next(self, take: Take) -> Cell | None:
        left = self.budget.left()
        return None if self._stopped is not None or (left is not None and left <= 0) else take(left)

    def _work(self, launcher: Launcher, take: Take, turn: threading.Lock, ended: queue.Queue) -> None:
        """One lane: one cell after another, then the end, or the error that ended it."""
        try:
            while True:
                with turn:
                    cell = self._next(take)
                if cell is None:
                    break
                ended.put((cell, launcher.run(cell)))
        except BaseException as error:  # of another thread: it is raised where the cells are waited for
            ended.put(error)
        else:
            ended.put(None if self._stopped is None else Stopped(self._stopped))

    @contextlib.contextmanager
    def _stopping_all(self) -> Iterator[None]:
        """A signal goes to the workers of all lanes, and no lane begins another cell."""

        def stop(number: int, frame: Any) -> None:
            self._stopped = number
            for launcher in self.launchers:
                launcher.stop(number)

        here = threading.current_thread() is threading.main_thread()
        before = {n: signal.signal(n, stop) for n in SIGNALS if here and signal.getsignal(n) is not signal.SIG_IGN}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
