"""Cells on this machine, each in a process of its own, on every GPU at once; several may share one.

    with Local(Limits.parse(None, None), Budget(1500.0), share=4, out="out", device="auto") as launcher:
        launcher.plan(cells)
        for cell, outcome in launcher.run(take):     # take(seconds left) is the next cell, or None

Small networks leave most of a large GPU idle. Their scores do not depend on what else runs there; their times do.
"""

import contextlib
import dataclasses
import queue
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from longspan.core.bucket import is_address
from longspan.core.cell import Cell
from longspan.core.mirror import everywhere
from longspan.core.signals import SIGNALS, Stopped
from longspan.core.threads import share_compilers
from longspan.launchers.base import Budget, Outcome, Take, shared_data
from longspan.launchers.limits import Limits
from longspan.launchers.mps import GAIN, multi_process_service
from longspan.launchers.supervisor import Supervisor
from longspan.launchers.tree import Adopted


class Local:
    """One supervisor per concurrent cell: `share` on each group of `devices` GPUs, or on the CPU.

    `how` are the arguments of `runs.run`.
    """

    def __init__(self, limits: Limits, budget: Budget, *, share: int = 1, debug: bool = False, **how: Any):
        if share > 1:
            how |= {"shared": True, "progress": False}  # bars of several processes would overwrite one another
        self.limits, self.budget, self.share, self.debug, self.how = limits, budget, share, debug, how
        self.several, self.slowdown = share > 1, float(share)
        self.supervisors: list[Supervisor] = []
        self._crowded: list[Cell] = []  # cells that ran out of memory beside others
        self._adopted = Adopted()
        self._open = contextlib.ExitStack()
        self._stopped: int | None = None

    def __enter__(self) -> "Local":
        served = self._open.enter_context(multi_process_service(self.share > 1 and self.how["device"] != "cpu"))
        self.slowdown /= GAIN if served and self.share > 1 else 1.0
        if self.share > 1:
            by = " through NVIDIA's multi-process service" if served else ""
            print(f"Up to {self.share} cells share the device{by}; their cards have no speed.", file=sys.stderr)
        self._add([{}] * self.share)
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def plan(self, cells: Sequence[Cell]) -> None:
        """Refuse a wrong request before anything is trained; then start supervisors for each further group of GPUs."""
        first = self.supervisors[0]
        first.plan(cells)
        each = self.how.get("devices", 1)
        groups = [first.gpus[start : start + each] for start in range(0, len(first.gpus) - each + 1, each)]
        if len(groups) > 1 and len(cells) > 1:
            self.how["progress"], self.several = False, True
            for one in self.supervisors:  # their workers see all GPUs and use the first ones
                one.how["progress"] = False
            further = groups[1 : -(-len(cells) // self.share)]
            self._add([{"CUDA_VISIBLE_DEVICES": ",".join(group)} for group in further for _ in range(self.share)])

    def run(self, take: Take) -> Iterator[tuple[Cell, Outcome]]:
        """Each cell with its outcome, as they end."""
        if len(self.supervisors) == 1:
            while (cell := self._next(take)) is not None:
                yield cell, self.supervisors[0].run(cell)
            return
        ended: queue.Queue[tuple[Cell, Outcome] | BaseException | None] = queue.Queue()
        turn = threading.Lock()
        lanes = [threading.Thread(target=self._work, args=(one, take, turn, ended)) for one in self.supervisors]
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
        yield from self._run_alone()

    def _add(self, environments: Sequence[dict[str, str]]) -> None:
        """One more supervisor for each environment; all share the memory and the cores of the machine equally."""
        count = len(self.supervisors) + len(environments)
        memory = None if self.limits.memory_bytes is None else self.limits.memory_bytes // count
        each = dataclasses.replace(self.limits, memory_bytes=memory)
        for one in self.supervisors:
            one.limits = each
        out = everywhere(self.how["out"])
        shared = {"LONGSPAN_DATA": shared_data(out)} if is_address(out) else {}
        shared |= share_compilers(count)
        for environment in environments:
            common = {"debug": self.debug, "deadline": self.budget.deadline, "adopted": self._adopted}
            one = Supervisor(each, environment=shared | environment, **common, **self.how)
            self.supervisors.append(self._open.enter_context(one))

    def _next(self, take: Take) -> Cell | None:
        left = self.budget.left()
        return None if self._stopped is not None or (left is not None and left <= 0) else take(left)

    def _work(self, supervisor: Supervisor, take: Take, turn: threading.Lock, ended: queue.Queue) -> None:
        """One lane: run one cell after another, then report the end, or the error that caused it."""
        try:
            while True:
                with turn:
                    cell = self._next(take)
                if cell is None:
                    break
                outcome = supervisor.run(cell)
                if outcome.crowded:
                    print(f"{outcome.sentence} It is tried again when the others have ended.", file=sys.stderr)
                    self._crowded.append(cell)
                else:
                    ended.put((cell, outcome))
        except BaseException as error:  # in another thread: it is raised where the cells are awaited
            ended.put(error)
        else:
            ended.put(None if self._stopped is None else Stopped(self._stopped))

    def _run_alone(self) -> Iterator[tuple[Cell, Outcome]]:
        """Cells that ran out of memory beside others, now one after another with all memory of the device."""
        if self._crowded:
            for one in self.supervisors:
                one.rest()
            self.supervisors[0].how["shared"] = False
        while self._crowded:
            cell, left = self._crowded.pop(0), self.budget.left()
            if left is not None and left <= 0:
                title = f"{cell.task} {cell.mechanism} seed {cell.seed}"
                yield cell, Outcome(sentence=f"{title}: time is up.", unfinished=True)
            else:
                yield cell, self.supervisors[0].run(cell)

    @contextlib.contextmanager
    def _stopping_all(self) -> Iterator[None]:
        """A signal goes to the workers of all lanes, and no lane begins another cell."""

        def stop(number: int, frame: Any) -> None:
            self._stopped = number
            for supervisor in self.supervisors:
                supervisor.stop(number)

        here = threading.current_thread() is threading.main_thread()
        before = {n: signal.signal(n, stop) for n in SIGNALS if here and signal.getsignal(n) is not signal.SIG_IGN}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
