"""Cells as jobs of Slurm: arrays of jobs with one cell or several each, requeued when pre-empted or out of time.

    with Slurm(Limits.parse(None, None), Budget(), settings={"partition": "gpu"}, out="/shared/out") as launcher:
        launcher.plan(cells)
        for cell, outcome in launcher.run(take):

Jobs see the folder `out` and this package. Before its time is up a job saves its state and is queued again; it goes on
from there. submitit writes the job scripts and their logs, in `out/slurm`. Needs the extra `slurm`.
"""

import functools
import itertools
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from longspan.core.cell import Cell
from longspan.core.errors import UsageError
from longspan.core.signals import deferred
from longspan.launchers.base import Budget, Outcome, Take
from longspan.launchers.limits import Limits
from longspan.launchers.process import Died
from longspan.launchers.supervisor import Supervisor

TICK = 1.0  # seconds between two looks for results
ASK = 15.0  # seconds between two questions to Slurm, which serves many
SETTLING = 60.0  # seconds after a job has left the queue for its result to show on a shared disk
PAUSE = 30.0  # seconds before a cell whose files could not be written is tried again
TRIES = 3  # of a cell whose job ends without a result
LARGEST_ARRAY = 1000  # Slurm's own limit is 1,001 unless its administrator chose another
DEFAULTS = {"job_name": "longspan", "time": 240, "signal_delay_s": 120, "stderr_to_stdout": True}


class Slurm:
    """`settings` are those of sbatch as submitit names them (`partition`, `time` in minutes, `gpus_per_node`, ...).

    Each job runs `cells_per_job` cells one after another, with `cpus` processor cores. `how` are the arguments of
    `runs.run`.
    """

    def __init__(
        self,
        limits: Limits,
        budget: Budget,
        *,
        share: int = 1,
        debug: bool = False,
        settings: Mapping[str, Any] | None = None,
        cells_per_job: int = 1,
        cpus: int = 1,
        **how: Any,
    ):
        try:
            import submitit  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError:
            raise UsageError(
                "--launcher slurm needs the package submitit, which is not installed; pip install 'longspan[slurm]'."
            ) from None
        if share > 1:
            raise UsageError(f"--share {share} is not for --launcher slurm, which gives each job what it asks for.")
        self.several, self.slowdown, self.budget, self.cells_per_job = True, 1.0, budget, cells_per_job
        out = Path(how["out"]).absolute()
        how |= {"out": str(out), "progress": False}
        self._supervise = functools.partial(Supervisor, limits, debug=debug, **(how | {"device": "cpu"}))
        data = str(Path(os.environ.get("LONGSPAN_DATA") or "out/data").absolute())
        self.job = Job(limits, debug, how, os.getcwd(), data)
        if not submitit.SlurmExecutor.affinity():
            raise UsageError("--launcher slurm needs sbatch, which is not here; run it where jobs are submitted.")
        self.executor = submitit.SlurmExecutor(folder=out / "slurm", max_num_timeout=10**6)
        self.executor.update_parameters(**self._parameters(dict(settings or {}), cpus))

    def __enter__(self) -> "Slurm":
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def plan(self, cells: Sequence[Cell]) -> None:
        """Refuse a wrong request here, where no GPU is needed for it."""
        with self._supervise() as supervisor:
            supervisor.plan(cells)

    def run(self, take: Take) -> Iterator[tuple[Cell, Outcome]]:
        """Each cell with what became of it, as their jobs end."""
        waiting = list(iter(lambda: take(self.budget.left()), None))
        groups = [waiting[at : at + self.cells_per_job] for at in range(0, len(waiting), self.cells_per_job)]
        flying = [(job, group, 1) for job, group in zip(self._submit(groups), groups, strict=True)]
        gone: dict[str, float] = {}  # jobs that have left the queue without a result, and since when
        asked = time.monotonic()
        with deferred() as stop:
            while flying:
                left = self.budget.left()
                if stop.asked or (left is not None and left <= 0):
                    yield from self._cancel(flying)
                    if stop.asked:
                        stop.now()
                    return
                time.sleep(TICK)
                if time.monotonic() - asked > ASK:
                    asked, queued = time.monotonic(), self._queued()
                    for job, _, _ in flying:
                        if queued is not None and job.job_id not in queued:
                            gone.setdefault(job.job_id, asked)
                        else:
                            gone.pop(job.job_id, None)
                still = []
                for job, group, tries in flying:
                    if job.paths.result_pickle.exists():
                        yield from zip(group, _outcomes(job, group), strict=True)
                    elif time.monotonic() - gone.get(job.job_id, time.monotonic()) < SETTLING:
                        still.append((job, group, tries))
                    elif tries < TRIES:
                        still.append((self._submit([group])[0], group, tries + 1))
                    else:
                        yield from ((cell, self._lost(cell, job)) for cell in group)
                flying = still

    def _parameters(self, settings: dict[str, Any], cpus: int) -> dict[str, Any]:
        """What submitit has a name for, and the rest for sbatch as it is."""
        known = self.executor._valid_parameters()
        rest = {name: settings.pop(name) for name in list(settings) if name not in known}
        gpus = {"gpus_per_node": self.job.how.get("devices", 1)} if self.job.how["device"] == "cuda" else {}
        found = DEFAULTS | {"cpus_per_task": cpus, "additional_parameters": rest} | gpus | settings
        if not isinstance(found["time"], int):
            raise UsageError(f"--set-slurm time is in whole minutes, got {found['time']!r}; write it like time=240.")
        return found

    def _submit(self, groups: Sequence[list[Cell]]) -> list[Any]:
        jobs = []
        for at in range(0, len(groups), LARGEST_ARRAY):
            try:
                jobs += self.executor.map_array(self.job, groups[at : at + LARGEST_ARRAY])
            except Exception as error:  # submitit raises its own kinds; what sbatch said is in them
                for job in jobs:
                    _scancel("TERM", [job.job_id])
                said = " ".join(str(error).split())[-300:]
                raise UsageError(f"sbatch refused the jobs ({said}); see --set-slurm and sinfo.") from error
        return jobs

    def _queued(self) -> set[str] | None:
        """Jobs that Slurm still has, running or waiting; None where it does not answer now."""
        name = self.executor.parameters["job_name"]
        command = ["squeue", "--me", "--noheader", "--array", f"--name={name}", "--format=%F_%K"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return set(done.stdout.split()) if done.returncode == 0 else None

    def _lost(self, cell: Cell, job: Any) -> Outcome:
        """The card of a cell whose jobs end without a result each time."""
        reason = f"its job ended {TRIES} times without a result; the log of the last one is {job.paths.stdout.name}"
        with self._supervise() as supervisor:
            return supervisor.fail(cell, Died(reason, resumable=True))

    def _cancel(self, flying: Sequence[tuple[Any, list[Cell], int]]) -> Iterator[tuple[Cell, Outcome]]:
        """Jobs that wait are taken back, those that run save their state and end."""
        identities = [job.job_id for job, _, _ in flying]
        _scancel("PENDING", identities)
        _scancel("TERM", identities)
        for cell in itertools.chain.from_iterable(group for _, group, _ in flying):
            yield cell, Outcome(sentence=f"{cell.task} {cell.mechanism} seed {cell.seed}: stopped.", unfinished=True)


def _scancel(what: str, jobs: Sequence[str]) -> None:
    """Take back jobs that wait, or send those that run a signal."""
    how = ["--state=PENDING"] if what == "PENDING" else ["--state=RUNNING", f"--signal={what}"]
    for at in range(0, len(jobs), 500):
        subprocess.run(["scancel", *how, *jobs[at : at + 500]], capture_output=True, check=False)


def _outcomes(job: Any, group: list[Cell]) -> list[Outcome]:
    """What a job has left: an outcome for each cell, or an error for all of them."""
    if (error := job.exception()) is None:
        return job.result()
    said = " ".join(str(error).split())[-300:]
    return [Outcome(sentence=f"{cell.task} {cell.mechanism} seed {cell.seed} failed: {said}", code=4) for cell in group]


# --------------------------------------------------------------------------------------------------------- in a job

_supervisor: Supervisor | None = None


class Job:
    """Cells of one job, one after another; those that ended before the job was queued again are answered from cards."""

    def __init__(self, limits: Limits, debug: bool, how: dict[str, Any], folder: str, data: str):
        self.limits, self.debug, self.how, self.folder, self.data = limits, debug, how, folder, data

    def __call__(self, cells: Sequence[Cell]) -> list[Outcome]:
        global _supervisor
        os.chdir(self.folder)
        os.environ["LONGSPAN_DATA"] = self.data
        with Supervisor(self.limits, debug=self.debug, **self.how) as _supervisor:
            return [self._run(_supervisor, cell) for cell in cells]

    def _run(self, supervisor: Supervisor, cell: Cell) -> Outcome:
        """One cell, tried again where its files could not be written: a shared disk may be away for a minute."""
        outcome = supervisor.run(cell)
        for _ in range(TRIES - 1):
            if outcome.storage:
                time.sleep(PAUSE)
                outcome = supervisor.run(cell)
        return outcome

    def checkpoint(self, cells: Sequence[Cell]) -> Any:
        """Called before the job's time is up: save the state, and be queued again as it was."""
        from submitit.helpers import DelayedSubmission  # pyright: ignore[reportMissingImports]

        if _supervisor is not None:
            _supervisor.save()
        return DelayedSubmission(self, cells)
