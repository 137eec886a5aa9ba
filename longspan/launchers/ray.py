"""Cells on a Ray cluster: a task for each, with its processor cores and GPUs, wherever there is room.

    with Ray(Limits.parse(None, None), Budget(), address="10.0.0.1:6379", out="/shared/out", device="auto") as launcher:
        launcher.plan(cells)
        for cell, outcome in launcher.run(take):

Every node has this package and sees the folder `out`. A Ray process supervises its cells as `local` does. A cell whose
node dies is run again elsewhere from its last checkpoint, in at most three tries. Needs the extra `ray`.
"""

import contextlib
import os
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan.core.bucket import is_address
from longspan.core.cell import Cell
from longspan.core.environment import code_version
from longspan.core.errors import LongspanError, Reported, UsageError
from longspan.core.mirror import everywhere
from longspan.core.parent import adopt_orphans
from longspan.launchers.base import Budget, Outcome, Take, shared_data, until_stopped
from longspan.launchers.limits import Limits
from longspan.launchers.process import GRACE, Died
from longspan.launchers.supervisor import Supervisor

TRIES = 3  # of a cell whose process or node dies
PAUSE = 30.0  # seconds for which a node whose files cannot be written takes no other cell
TICK = 0.5  # seconds between two checks of the clock
AHEAD = 2  # cells handed to Ray for each that can run, so that no node waits for this process


@dataclass(frozen=True)
class Request:
    """What a node must know besides the cell."""

    limits: Limits
    debug: bool
    how: dict[str, Any]
    folder: str  # in which relative names of plug-ins are looked up
    data: str
    marker: str  # a file in `out` that shows that it is shared; empty for a bucket, which is
    code: str


class Ray:
    """`address` is that of a running cluster, else one is started here; `cpus` are processor cores for each cell.

    `share` cells together use one GPU, or `devices` GPUs. `how` are the arguments of `runs.run`.
    """

    def __init__(
        self,
        limits: Limits,
        budget: Budget,
        *,
        share: int = 1,
        debug: bool = False,
        address: str | None = None,
        cpus: int = 1,
        **how: Any,
    ):
        try:
            import ray
        except ModuleNotFoundError:
            raise UsageError(
                "--launcher ray needs the package ray, which is not installed; pip install 'longspan[ray]'."
            ) from None
        self.ray, self.budget, self.address, self.cpus, self.share = ray, budget, address, cpus, share
        self.several, self.slowdown = True, 1.0
        out = everywhere(how["out"])
        how |= {"out": out, "progress": False}
        marker = "" if is_address(out) else f"{out}/.shared-{uuid.uuid4().hex}"
        self.request = Request(limits, debug, how, os.getcwd(), shared_data(out), marker, _spell(code_version()))
        self._open = contextlib.ExitStack()
        self._resources: dict[str, float] = {}

    def __enter__(self) -> "Ray":
        marker = Path(self.request.marker)
        with contextlib.ExitStack() as opening:
            if self.request.marker:
                marker.parent.mkdir(parents=True, exist_ok=True)
                opening.callback(marker.unlink, missing_ok=True)
                marker.touch()
            try:
                self.ray.init(address=self.address or "local", log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, ValueError, RuntimeError) as error:
                where, why = self.address or "this machine", str(error).splitlines()[0]
                raise UsageError(f"Ray was asked for at {where}, and said: {why}; see ray status.") from None
            opening.callback(self.ray.shutdown)
            self._resources = self._needs()
            self._open = opening.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def plan(self, cells: Sequence[Cell]) -> None:
        """Refuse a wrong request on the first node that has room."""
        answer = self.ray.get(self._task(plan_here).remote(list(cells), self.request))
        if answer is not None:
            raise Reported(*answer)

    def run(self, take: Take) -> Iterator[tuple[Cell, Outcome]]:
        """Each cell with its outcome, as they end."""
        flying: dict[Any, tuple[Cell, int]] = {}
        return until_stopped(self._turns(take, flying), self.budget, lambda: self._cancel(flying))

    def _turns(self, take: Take, flying: dict[Any, tuple[Cell, int]]) -> Iterator[list[tuple[Cell, Outcome]]]:
        """Hand out cells while there is room, then see what has ended."""
        task, left = self._task(run_here), True
        while True:
            while left and len(flying) < self._room():
                if (cell := take(self.budget.left())) is None:
                    left = False
                else:
                    flying[task.remote(cell, self.request)] = cell, 1
            if not flying:
                return
            ended = []
            for reference in self._ready(flying, TICK):
                cell, tries = flying.pop(reference)
                outcome = self._outcome(reference)
                if tries < TRIES and (isinstance(outcome, str) or outcome.storage):
                    flying[task.remote(cell, self.request)] = cell, tries + 1
                elif isinstance(outcome, Outcome):
                    ended.append((cell, outcome))
                elif tries == TRIES:
                    flying[self._task(fail_here).remote(cell, outcome, self.request)] = cell, tries + 1
                else:  # its card could not be written either
                    sentence = f"{cell.task} {cell.mechanism} failed: {outcome}"
                    ended.append((cell, Outcome(sentence=sentence, code=4)))
            yield ended

    def _outcome(self, reference: Any) -> Outcome | str:
        """The outcome of a cell, or why its process is dead."""
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            return f"its process on the cluster died {TRIES} times, at last: {str(error).splitlines()[0][:200]}"

    def _needs(self) -> dict[str, float]:
        """The resources of the cluster that a cell takes; the device is chosen for all cells."""
        there, how = self.ray.cluster_resources(), self.request.how
        if how["device"] == "cuda" and not there.get("GPU"):
            raise UsageError("cuda was asked for, but the Ray cluster has no GPU; use --device cpu, or see ray status.")
        how["device"] = "cuda" if there.get("GPU") and how["device"] != "cpu" else "cpu"
        gpus = how.get("devices", 1) / self.share if how["device"] == "cuda" else 0.0
        if gpus == 0 or self.share > 1:
            how["shared"] = True  # a node runs several cells, and their times mean little
        if not any(_has(node, self.cpus, gpus) for node in self.ray.nodes()):
            print(f"No node of the cluster has {self.cpus} cores and {gpus:g} GPUs; waiting for one.", file=sys.stderr)
        return {"num_cpus": float(self.cpus), "num_gpus": gpus}

    def _task(self, function: Any) -> Any:
        return self.ray.remote(function).options(max_retries=0, **self._resources)

    def _room(self) -> int:
        """How many cells Ray is given at once: more than can run, so that an autoscaling cluster grows."""
        there = self.ray.cluster_resources()
        rooms = [there.get("CPU", 0) / self._resources["num_cpus"]]
        if self._resources["num_gpus"]:
            rooms.append(there.get("GPU", 0) / self._resources["num_gpus"])
        return max(1, int(AHEAD * min(rooms)))

    def _ready(self, flying: dict[Any, Any], seconds: float) -> list[Any]:
        first, _ = self.ray.wait(list(flying), num_returns=1, timeout=seconds)
        return self.ray.wait(list(flying), num_returns=len(flying), timeout=0)[0] if first else []

    def _cancel(self, flying: dict[Any, tuple[Cell, int]]) -> Iterator[tuple[Cell, Outcome]]:
        """Have the running cells save their states; those that end meanwhile keep their outcomes."""
        for reference in flying:
            self.ray.cancel(reference)
        deadline = time.monotonic() + GRACE
        while flying and time.monotonic() < deadline:
            for reference in self._ready(flying, TICK):
                cell, _ = flying.pop(reference)
                outcome = self._outcome(reference)
                yield cell, outcome if isinstance(outcome, Outcome) else _time_is_up(cell)
        yield from ((cell, _time_is_up(cell)) for cell, _ in flying.values())


def _has(node: dict[str, Any], cpus: int, gpus: float) -> bool:
    """Whether a node is alive and can ever run a cell."""
    has = node["Resources"]
    return node["Alive"] and has.get("CPU", 0) >= cpus and has.get("GPU", 0) >= gpus


def _time_is_up(cell: Cell) -> Outcome:
    return Outcome(sentence=f"{cell.task} {cell.mechanism} seed {cell.seed}: time is up.", unfinished=True)


# ------------------------------------------------------------------------------------------------------- on the nodes

_supervisor: Supervisor | None = None  # whose worker serves one cell after another


def plan_here(cells: Sequence[Cell], request: Request) -> tuple[str, int] | None:
    """Plan on a node; what is wrong, as a sentence and an exit code."""
    try:
        _supervise(request).plan(cells)
    except Died as died:
        return f"The cells could not be planned on {socket.gethostname()}: {died.reason}.", 4
    except LongspanError as error:
        return str(error), error.exit_code
    return None


def run_here(cell: Cell, request: Request) -> Outcome:
    """Run one cell on a node. Ray cancels a task by an interrupt, which is passed on and saves the state."""
    try:
        supervisor = _supervise(request)
    except LongspanError as error:
        return Outcome(sentence=str(error), code=error.exit_code)
    with supervisor.forwarding():
        outcome = supervisor.run(cell)
        if outcome.storage:  # a full disk concerns this node alone, and a store may be back soon: others go first
            time.sleep(PAUSE)
    return outcome


def fail_here(cell: Cell, reason: str, request: Request) -> Outcome:
    """Write the card of a cell that kills its process each time; its state is kept."""
    return _supervise(request).fail(cell, Died(reason, resumable=True))


def _supervise(request: Request) -> Supervisor:
    """The supervisor of this Ray process, which serves one command."""
    global _supervisor
    if _supervisor is None:
        _check_node(request)
        os.chdir(request.folder)
        adopt_orphans()
        environment = {"LONGSPAN_DATA": request.data}
        _supervisor = Supervisor(request.limits, debug=request.debug, environment=environment, **request.how)
    return _supervisor


def _check_node(request: Request) -> None:
    """Check that the node sees the folder of the command and has its code."""
    node, shared = socket.gethostname(), Path(request.marker).parent
    if request.marker and not Path(request.marker).exists():
        raise UsageError(
            f"{node} does not see the folder {shared} of this command; give an --out that all nodes share."
        )
    here = _spell(code_version())
    if here != request.code:
        raise UsageError(f"{node} has longspan {here}, this command {request.code}; install the same on all nodes.")


def _spell(code: dict[str, Any]) -> str:
    return f"{code['version']} {code['commit'] or ''}".strip()
