"""Cells on this machine, one after another, none of which can harm another.

    with Supervisor(Limits.parse("2h", "16G"), out="out", device="auto") as supervisor:
        supervisor.plan(cells)                   # refuses a wrong request before anything is trained
        for cell in cells:
            outcome = supervisor.run(cell)

Cells of built-in mechanisms and tasks share a worker process; a cell with a plug-in has one of its own. This process
imports neither torch nor a plug-in. A worker that dies, hangs or takes too much memory leaves a card that says so,
written by the shared worker, and the other cells are run. A plug-in may still write wherever the user may.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Any

from longspan.core.cell import Cell
from longspan.core.errors import UNEXPECTED, Reported, RunFailed, UsageError
from longspan.core.mirror import everywhere
from longspan.core.parent import adopt_orphans
from longspan.core.signals import SIGNALS, Stopped
from longspan.core.spec import Spec
from longspan.launchers.base import Outcome
from longspan.launchers.limits import IMPORT_SECONDS, Limits
from longspan.launchers.process import Died, Worker
from longspan.launchers.tree import Adopted
from longspan.results import card as cards

PACKAGE = Path(__file__).parents[1]
TRIES = 3  # of a cell whose worker is killed


class Supervisor:
    """Sends requests to workers, watches and ends them; `how` are the arguments of `runs.run`.

    `environment` is added to that of the workers. At the `deadline` (of the clock `time.monotonic`) the current cell is
    stopped with its state saved. Supervisors in one process share the same `adopted` processes, so that none takes the
    workers of another for orphans.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        debug: bool = False,
        deadline: float | None = None,
        adopted: Adopted | None = None,
        environment: Mapping[str, str] | None = None,
        **how: Any,
    ):
        self.limits, self.debug, self.how = limits, debug, how | {"out": everywhere(how["out"])}
        self.deadline, self.environment = deadline, dict(environment or {})
        self.gpus: list[str] = []  # GPUs that its workers can use, known once a request is planned
        self._shared: Worker | None = None
        self._waiting: dict[tuple[str, str], Worker] = {}  # plug-ins that are imported, paused until their first cell
        self._dead: dict[tuple[str, str], Died] = {}
        self._busy: Worker | None = None
        self._adopted = adopted or Adopted()
        self._handlers = contextlib.ExitStack()

    def __enter__(self) -> "Supervisor":
        adopt_orphans()
        self._handlers.callback(adopt_orphans, False)
        self._handlers.enter_context(self.forwarding())
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for worker in (*self._waiting.values(), self._shared):
            if worker is not None:
                worker.end()
        self._handlers.close()

    # ------------------------------------------------------------------------------------------------------- requests

    def plan(self, cells: Sequence[Cell]) -> None:
        """Resolve every cell in the process that may import its code; the first wrong one is raised."""
        shared = [cell for cell in cells if not is_plugin(cell)]
        if shared:
            try:
                self._accept(shared, self._ask(self._clean(), self._request("plan", cells=shared), None))
            except Died as died:  # before any cell began, so that no card can say why
                raise RunFailed(f"No run could be prepared: {died.reason}.") from died
        for code in dict.fromkeys(map(_code, filter(is_plugin, cells))):
            group = [cell for cell in cells if _code(cell) == code]
            worker = self._start()
            try:
                self._accept(group, self._ask(worker, self._request("plan", cells=group), IMPORT_SECONDS))
            except Died as died:
                self._dead[code] = died
            except BaseException:
                worker.end()
                raise
            else:
                worker.pause()
                self._waiting[code] = worker

    def run(self, cell: Cell) -> Outcome:
        """Run one cell to its card; if its worker is killed it resumes in another, for at most three tries."""
        if (died := self._dead.get(_code(cell))) is not None:
            return self.fail(cell, died)
        for _ in range(TRIES - 1):
            try:
                return self._run(cell)
            except Died as died:
                if not died.killed:
                    return self.fail(cell, died)
                title = f"{cell.task} {cell.mechanism} seed {cell.seed}"
                print(f"{title}: {died.reason}; it goes on in another.", file=sys.stderr, flush=True)
        try:
            return self._run(cell)
        except Died as died:
            return self.fail(cell, Died(f"{died.reason}, {TRIES} times") if died.killed else died)

    def _run(self, cell: Cell) -> Outcome:
        """One try; if its worker dies, that is dropped and Died is raised."""
        plugin = is_plugin(cell)
        worker = self._own(_code(cell)) if plugin else self._clean()
        worker.deadline = self.deadline
        try:
            reply = self._ask(worker, self._request("run", cell=cell), self.limits.of(plugin=plugin))
            outcome = self._outcome(reply, cell)
        except Died:
            self._drop(worker)
            raise
        except Stopped:
            if not worker.out_of_time:
                raise
            self._drop(worker)
            return Outcome(sentence=f"{cell.task} {cell.mechanism} seed {cell.seed}: time is up.", unfinished=True)
        if plugin or outcome.code:  # a failure may have left anything behind
            self._drop(worker)
        return outcome

    def fail(self, cell: Cell, died: Died) -> Outcome:
        """The shared worker writes the card of a cell whose process is dead."""
        request = self._request("fail", cell=cell, reason=died.reason, keep=died.resumable)
        try:
            return self._outcome(self._ask(self._clean(), request, None), cell)
        except Died as another:
            self._drop(self._clean())
            return Outcome(sentence=f"{cell.task} {cell.mechanism} failed: {died.reason}; {another.reason}", code=4)

    def _request(self, do: str, **what: Any) -> dict[str, Any]:
        plain = {name: _plain(value) for name, value in what.items()}
        return {"do": do, "how": self.how, "debug": self.debug, **plain}

    def _ask(self, worker: Worker, request: dict[str, Any], seconds: float | None) -> dict[str, Any]:
        self._busy = worker
        try:
            reply = worker.ask(request, seconds)
        except Died:
            if worker.stopped_by is not None:
                raise Stopped(worker.stopped_by) from None
            raise
        finally:
            self._busy = None
        if worker.stopped_by is not None and ("stopped" in reply or "card" not in reply):
            raise Stopped(worker.stopped_by)
        return reply

    # ------------------------------------------------------------------------------- answers, which a plug-in may forge

    def _accept(self, cells: Sequence[Cell], reply: dict[str, Any]) -> None:
        if "error" in reply:
            raise Reported(*_sentence(reply))
        gpus = reply.get("gpus")
        if reply.get("planned") != len(cells) or not (isinstance(gpus, list) and all(isinstance(g, str) for g in gpus)):
            raise Died("its process gave no sensible answer")
        self.gpus = gpus

    def _outcome(self, reply: dict[str, Any], cell: Cell) -> Outcome:
        if "error" in reply:
            kinds = {name: reply.get(name) is True for name in ("storage", "crowded")}
            return Outcome(None, *_sentence(reply), **kinds)
        if "stopped" in reply:  # by a signal to it alone, or that reached it first
            raise Died("its process was told to stop", killed=True)
        try:
            cards.validate(reply.get("card"))
        except UsageError as error:
            raise Died(f"its process gave no sound card ({error})") from None
        card = reply["card"]
        if (card["kind"], card["seed"], card["tier"], card["protocol"]) != ("run", cell.seed, cell.tier, cell.protocol):
            raise Died("its process gave the card of another cell")
        return Outcome(card)

    # -------------------------------------------------------------------------------------------------------- processes

    def _clean(self) -> Worker:
        """The shared worker, in which no plug-in was ever imported."""
        if self._shared is None:
            self._shared = self._start()
        return self._shared

    def _start(self) -> Worker:
        return Worker(self.limits.memory_bytes, self._adopted, self.environment)

    def _own(self, code: tuple[str, str]) -> Worker:
        """A worker for one cell with a plug-in."""
        if (worker := self._waiting.pop(code, None)) is None:
            return self._start()
        worker.go_on()
        return worker

    def _drop(self, worker: Worker) -> None:
        worker.end()
        if worker is self._shared:
            self._shared = None

    def rest(self) -> None:
        """End the worker that waits for the next cell, which frees the memory it holds on the device."""
        if self._shared is not None:
            self._drop(self._shared)

    def stop(self, number: int) -> bool:
        """Pass a signal on to the busy worker; False where there is none."""
        if (busy := self._busy) is None:
            return False
        busy.stop(number)
        return True

    def save(self) -> None:
        """Have the busy worker save its state, and wait until it has: for use in a signal handler."""
        if (busy := self._busy) is not None:
            busy.save()

    @contextlib.contextmanager
    def forwarding(self) -> Iterator[None]:
        """Signals go to the busy worker; where there is none, they stop this process."""

        def forward(number: int, frame: Any) -> None:
            if not self.stop(number):
                raise Stopped(number)

        here = threading.current_thread() is threading.main_thread()
        numbers = [n for n in SIGNALS if here and signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, forward) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def is_plugin(cell: Cell) -> bool:
    """Whether a cell runs code that is not ours."""
    task, _, network = cell.task.rpartition("@")  # a path with an @ has a colon as well
    return (
        _is_foreign("tasks", task or network)
        or bool(task and _is_foreign("backbones", network))
        or _is_foreign("attentions", Spec.parse(cell.mechanism).target)
    )


def _is_foreign(package: str, target: str) -> bool:
    if ":" in target:
        return True
    own = {path.stem for path in (PACKAGE / package).rglob("*.py")}
    return target not in own and target in {point.name for point in entry_points(group=f"longspan.{package}")}


def _code(cell: Cell) -> tuple[str, str]:
    return cell.task, cell.mechanism


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return asdict(value) if isinstance(value, Cell) else value


def _sentence(reply: dict[str, Any]) -> tuple[str, int]:
    code = reply.get("code")
    return str(reply["error"])[:2000], code if isinstance(code, int) and 1 <= code <= 4 else UNEXPECTED
