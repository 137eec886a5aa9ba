"""Cells as Slurm jobs: arrays of jobs with one cell or several each, requeued when pre-empted or out of time.

    with Slurm(Limits.parse(None, None), Budget(), settings={"partition": "gpu"}, out="/shared/out") as launcher:
        launcher.plan(cells)
        for cell, outcome in launcher.run(take):

Jobs see the folder `out` and this package. Before its time is up a job saves its state and is queued again; it resumes
from there. submitit writes the job scripts and their logs, in `out/slurm`. Needs the extra `slurm`.
"""

import functools
import itertools
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from longspan.core.bucket import is_address
from longspan.core.cell import Cell
from longspan.core.errors import UsageError
from longspan.core.mirror import everywhere, local
from longspan.core.signals import Stopped
from longspan.launchers.base import Budget, Outcome, Take, shared_data, until_stopped
from longspan.launchers.limits import Limits
from longspan.launchers.matrix import folders_of
from longspan.launchers.process import Died
from longspan.launchers.supervisor import Supervisor

TICK = 1.0  # seconds between two checks for results
ASK = 15.0  # seconds between two queries to Slurm, which serves many users
SETTLING = 60.0  # seconds after a job has left the queue for its result to show on a shared disk
PAUSE = 30.0  # seconds before a cell whose files could not be written is tried again
TRIES = 3  # of a cell whose job ends without a result
LARGEST_ARRAY = 1000  # Slurm's own limit is 1,001 unless its administrator chose another
Flying = tuple[Any, list[Cell], int]  # a job, its cells, and which try it is
DEFAULTS = {"job_name": "longspan", "time": 240, "signal_delay_s": 120, "stderr_to_stdout": True}


class Stuck(Exception):
    """A job ran out of time again, and its cell has come no further."""


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
        out = everywhere(how["out"])
        how |= {"out": out, "progress": False}
        self._supervise = functools.partial(Supervisor, limits, debug=debug, **(how | {"device": "cpu"}))
        self.job = Job(limits, debug, how, os.getcwd(), shared_data(out))
        if not submitit.SlurmExecutor.affinity():
            raise UsageError("--launcher slurm needs sbatch, which is not here; run it where jobs are submitted.")
        self.executor = submitit.SlurmExecutor(
            folder=Path("out" if is_address(out) else out).absolute() / "slurm", max_num_timeout=10**6
        )
        parameters = self._parameters(dict(settings or {}), cpus)
        self.executor.update_parameters(**parameters)
        # Slurm announces the end of a job's time up to a minute early.
        self.job.seconds = 60.0 * parameters["time"] - parameters["signal_delay_s"] - 60.0

    def __enter__(self) -> "Slurm":
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def plan(self, cells: Sequence[Cell]) -> None:
        """Refuse a wrong request here, since that needs no GPU."""
        with self._supervise() as supervisor:
            supervisor.plan(cells)

    def run(self, take: Take) -> Iterator[tuple[Cell, Outcome]]:
        """Each cell with its outcome, as their jobs end."""
        flying: list[Flying] = []
        return until_stopped(self._turns(take, flying), self.budget, lambda: self._cancel(flying))

    def _turns(self, take: Take, flying: list[Flying]) -> Iterator[list[tuple[Cell, Outcome]]]:
        """Submit all cells, then look for results again and again."""
        waiting = list(iter(lambda: take(self.budget.left()), None))
        groups = [waiting[at : at + self.cells_per_job] for at in range(0, len(waiting), self.cells_per_job)]
        flying += [(job, group, 1) for job, group in zip(self._submit(groups), groups, strict=True)]
        gone: dict[str, float] = {}  # jobs that have left the queue without a result, and since when
        asked = time.monotonic()
        while flying:
            yield []
            time.sleep(TICK)
            if time.monotonic() - asked > ASK:
                asked, queued = time.monotonic(), self._queued()
                for job, _, _ in flying:
                    if queued is not None and job.job_id not in queued:
                        gone.setdefault(job.job_id, asked)
                    else:
                        gone.pop(job.job_id, None)
            ended, still = [], []
            for job, group, tries in flying:
                if job.paths.result_pickle.exists():
                    outcomes = _outcomes(job, group)
                    ended += [(cell, self._carded(cell, one)) for cell, one in zip(group, outcomes, strict=True) if one]
                    if left := [cell for cell, one in zip(group, outcomes, strict=True) if one is None]:
                        still.append((self._submit([left])[0], left, 1))
                elif time.monotonic() - gone.get(job.job_id, time.monotonic()) < SETTLING:
                    still.append((job, group, tries))
                elif tries < TRIES:
                    still.append((self._submit([group])[0], group, tries + 1))
                else:
                    ended += [(cell, self._lost(cell, job)) for cell in group]
            flying[:] = still
            yield ended

    def _parameters(self, settings: dict[str, Any], cpus: int) -> dict[str, Any]:
        """Settings that submitit knows by name; the rest is passed on to sbatch unchanged."""
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
            except Exception as error:  # submitit raises its own errors, with sbatch's message in them
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
        if done.returncode != 0:
            return None
        return {job.removesuffix("_N/A") for job in done.stdout.split()}  # a job outside an array has no index

    def _lost(self, cell: Cell, job: Any) -> Outcome:
        """The card of a cell whose jobs end without a result each time."""
        reason = f"its job ended {TRIES} times without a result; the log of the last one is {job.paths.stdout.name}"
        return self._fail(cell, reason)

    def _carded(self, cell: Cell, outcome: Outcome | Stuck) -> Outcome:
        """An outcome, unchanged; a cell whose jobs had too little time for it gets a card that says so."""
        if isinstance(outcome, Outcome):
            return outcome
        minutes = self.executor.parameters["time"]
        return self._fail(
            cell,
            f"its job came no further in {TRIES} times {minutes} minutes, which is its time limit; "
            f"allow more with --set-slurm time={4 * minutes}",
        )

    def _fail(self, cell: Cell, reason: str) -> Outcome:
        with self._supervise() as supervisor:
            return supervisor.fail(cell, Died(reason, resumable=True))

    def _cancel(self, flying: Sequence[Flying]) -> Iterator[tuple[Cell, Outcome]]:
        """Cancel pending jobs; running ones save their state and end."""
        identities = [job.job_id for job, _, _ in flying]
        _scancel("PENDING", identities)
        _scancel("TERM", identities)
        for cell in itertools.chain.from_iterable(group for _, group, _ in flying):
            yield cell, Outcome(sentence=f"{cell.task} {cell.mechanism} seed {cell.seed}: stopped.", unfinished=True)


def _scancel(what: str, jobs: Sequence[str]) -> None:
    """Cancel pending jobs, or send a signal to running ones."""
    how = ["--state=PENDING"] if what == "PENDING" else ["--state=RUNNING", f"--signal={what}"]
    for at in range(0, len(jobs), 500):
        subprocess.run(["scancel", *how, *jobs[at : at + 500]], capture_output=True, check=False)


def _outcomes(job: Any, group: list[Cell]) -> "list[Outcome | Stuck | None]":
    """The results of a job: an outcome for each cell it came to, or an error for all of them."""
    if (error := job.exception()) is None:
        return job.result()
    said = " ".join(str(error).split())[-300:]
    return [Outcome(sentence=f"{cell.task} {cell.mechanism} seed {cell.seed} failed: {said}", code=4) for cell in group]


# --------------------------------------------------------------------------------------------------------- in a job

_supervisor: Supervisor | None = None


class Job:
    """Cells of one job, one after another; those that ended before the job was queued again are answered from cards.

    `seconds` is the time after which the end of the job's time may be announced.
    """

    def __init__(self, limits: Limits, debug: bool, how: dict[str, Any], folder: str, data: str, seconds: float = 0.0):
        self.limits, self.debug, self.how, self.folder, self.data = limits, debug, how, folder, data
        self.seconds = seconds
        self.reached = (0, 0, 0)  # the most so far: cells ended, steps saved, shards of data made
        self.standing = 0  # how often the time was up without progress
        self._ended, self._began = 0, 0.0

    def __call__(self, cells: Sequence[Cell]) -> list[Outcome | Stuck | None]:
        """The outcome of each cell; None for those that a stuck one left no time for."""
        global _supervisor
        os.chdir(self.folder)
        os.environ["LONGSPAN_DATA"] = self.data
        self._ended, self._began = 0, time.monotonic()
        self.reached = max(self.reached, self._reached(cells))
        outcomes: list[Outcome | Stuck | None] = []
        try:
            with Supervisor(self.limits, debug=self.debug, **self.how) as _supervisor:
                for cell in cells:
                    outcomes.append(self._run(_supervisor, cell))
                    self._ended += 1
        except Stuck as stuck:
            outcomes.append(stuck)
        except Stopped:
            if _is_pre_empted():  # to Slurm, a job that ends by itself during its grace period has failed
                _scontrol("requeue")
            raise
        return outcomes + [None] * (len(cells) - len(outcomes))

    def _run(self, supervisor: Supervisor, cell: Cell) -> Outcome:
        """One cell, tried again where its files could not be written: a shared disk may be away for a minute."""
        outcome = supervisor.run(cell)
        for _ in range(TRIES - 1):
            if outcome.storage:
                time.sleep(PAUSE)
                outcome = supervisor.run(cell)
        return outcome

    def checkpoint(self, cells: Sequence[Cell]) -> Any:
        """Called by submitit before the job's time is up: save the state and queue the job again unchanged.

        Not forever: with a time limit too short to reach the first checkpoint, the job would never end.
        """
        from submitit.helpers import DelayedSubmission  # pyright: ignore[reportMissingImports]

        if _supervisor is not None:
            _supervisor.save()
        if time.monotonic() - self._began >= self.seconds:  # else it is pre-empted, which says nothing about progress
            reached = self._reached(cells)
            self.standing = 0 if reached > self.reached else self.standing + 1
            self.reached = max(reached, self.reached)
            if self.standing >= TRIES:
                raise Stuck
        return DelayedSubmission(self, cells)

    def _reached(self, cells: Sequence[Cell]) -> tuple[int, int, int]:
        """How far these cells are; data that is being prepared for them counts too."""
        runs = folders_of(local(self.how["out"]), cells)
        saved = [path.stem.partition("-")[2] for folder in runs for path in folder.rglob("checkpoint-*.pt")]
        shards = sum(1 for _ in local(self.data).glob("*/*.work/*.npz"))
        return self._ended, sum(int(step) for step in saved if step.isdecimal()), shards


def _is_pre_empted() -> bool:
    """Whether Slurm wants the node of this job for another job, as opposed to a person ending this one."""
    return re.search(r"\bPreemptTime=\d", _scontrol("show", "--oneliner", "job")) is not None


def _scontrol(*words: str) -> str:
    """What scontrol prints when it is called for this job."""
    command = ["scontrol", *words, os.environ["SLURM_JOB_ID"]]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
