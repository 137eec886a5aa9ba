"""What becomes of jobs, without a Slurm: a stand-in for submitit ends them as instructed."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from longspan.core.cell import Cell
from longspan.core.errors import UsageError
from longspan.core.signals import Stopped
from longspan.launchers import open_launcher, slurm
from longspan.launchers.base import Budget, Outcome
from longspan.launchers.limits import Limits
from tests.results.factory import make_card


class Executor:
    """Jobs end at once: with a result, with an error, or, if they are lost, silently."""

    def __init__(self, folder, max_num_timeout):
        self.folder, self.submitted, self.parameters = folder, [], {}

    @classmethod
    def affinity(cls):
        return 1

    @classmethod
    def _valid_parameters(cls):
        return {"job_name", "time", "partition", "cpus_per_task", "signal_delay_s", "gpus_per_node"}

    def update_parameters(self, **parameters):
        self.parameters |= parameters

    def map_array(self, job, groups):
        made = []
        for group in groups:
            self.submitted.append([cell.seed for cell in group])
            kind = self.ends(group, self.submitted.count([cell.seed for cell in group]))
            pickle = SimpleNamespace(exists=lambda kind=kind: kind != "lost")
            error = "Traceback\nOSError: it broke" if kind == "error" else None
            paths = SimpleNamespace(result_pickle=pickle, stdout=SimpleNamespace(name="7_log.out"))
            outcomes = [Outcome(make_card(seed=cell.seed)) for cell in group]
            if kind == "stuck":
                outcomes[1:] = [slurm.Stuck(), *[None] * len(group[2:])]
            made.append(
                SimpleNamespace(
                    job_id=f"1_{len(self.submitted)}",
                    paths=paths,
                    exception=lambda error=error: error,
                    result=lambda outcomes=outcomes: outcomes,
                )
            )
        return made


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Run four cells whose jobs end as `ends` says; the outcomes, and the executor."""

    def launch(ends, queue="", **how):
        fake = type("Fake", (Executor,), {"ends": staticmethod(ends)})
        monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace(SlurmExecutor=fake))
        monkeypatch.setattr(slurm, "TICK", 0.0)
        monkeypatch.setattr(slurm, "ASK", -1.0)
        monkeypatch.setattr(slurm, "SETTLING", 0.0)
        said = subprocess.CompletedProcess([], 0, stdout=queue)
        monkeypatch.setattr(slurm.subprocess, "run", lambda *words, **settings: said)
        waiting = [Cell("listops", "softmax", seed=seed) for seed in range(4)]
        given = {"out": str(tmp_path / "out"), "device": "cpu"} | how
        with open_launcher("slurm", Limits(), Budget(), **given) as launcher:
            monkeypatch.setattr(launcher, "_lost", lambda cell, job: Outcome(sentence="lost", code=4))
            ended = list(launcher.run(lambda left: waiting.pop(0) if waiting else None))
        return {cell.seed: outcome for cell, outcome in ended}, launcher.executor

    return launch


@pytest.mark.parametrize("each, groups", [(1, [[0], [1], [2], [3]]), (3, [[0, 1, 2], [3]])])
def test_every_cell_has_its_outcome_once_however_many_a_job_has(launch, each, groups):
    outcomes, executor = launch(lambda group, number: "result", cells_per_job=each)
    assert executor.submitted == groups
    assert {seed: outcome.card["seed"] for seed, outcome in outcomes.items()} == {seed: seed for seed in range(4)}


def test_a_job_that_ends_without_a_word_is_submitted_again_three_times_at_the_most(launch):
    def ends(group, number):
        return "lost" if group[0].seed == 3 or (group[0].seed == 1 and number < 3) else "result"

    outcomes, executor = launch(ends)
    assert [executor.submitted.count([seed]) for seed in range(4)] == [1, 3, 1, 3]
    assert outcomes[1].card
    assert outcomes[3] == Outcome(sentence="lost", code=4)


def test_a_job_is_known_by_its_place_in_an_array_and_one_that_is_alone_without(launch, monkeypatch):
    monkeypatch.setattr(slurm.Slurm, "run", lambda self, take: asked.append(self._queued()) or [])
    asked = []
    launch(lambda group, number: "result", queue="1_0\n1_12\n7_N/A\n")
    assert asked == [{"1_0", "1_12", "7"}]


def test_an_error_of_a_job_is_the_sentence_of_its_cells(launch):
    outcomes, _ = launch(lambda group, number: "error" if group[0].seed == 2 else "result")
    assert outcomes[2].code == 4
    assert outcomes[2].sentence == "listops softmax seed 2 failed: Traceback OSError: it broke"
    assert outcomes[3].card


def test_settings_reach_sbatch_under_its_own_names(launch):
    settings = {"partition": "gpu", "reservation": "paper"}
    _, executor = launch(lambda group, number: "result", settings=settings, cpus=4, device="cuda", devices=2)
    assert executor.parameters["additional_parameters"] == {"reservation": "paper"}
    found = {name: executor.parameters[name] for name in ("partition", "cpus_per_task", "gpus_per_node", "time")}
    assert found == {"partition": "gpu", "cpus_per_task": 4, "gpus_per_node": 2, "time": 240}
    with pytest.raises(UsageError, match="in whole minutes, got '4h'"):
        launch(lambda group, number: "result", settings={"time": "4h"})


def test_cells_whose_files_cannot_be_written_now_are_tried_again_in_their_job(tmp_path, monkeypatch):
    waited, full = [], Outcome(sentence="Cannot write x.", code=4, storage=True)
    monkeypatch.setattr(slurm.time, "sleep", waited.append)
    answers = [full, full, Outcome(make_card())]
    job = slurm.Job(Limits(), False, {"out": str(tmp_path)}, str(tmp_path), str(tmp_path))
    supervisor = SimpleNamespace(run=lambda cell: answers.pop(0))
    assert job._run(supervisor, Cell("listops", "softmax")).card
    assert sum(waited) == 60.0


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job of two cells whose worker is stopped; submitit is a stand-in."""
    helpers = SimpleNamespace(DelayedSubmission=lambda job, cells: (job, cells))
    monkeypatch.setitem(sys.modules, "submitit.helpers", helpers)
    return slurm.Job(Limits(), False, {"out": str(tmp_path)}, str(tmp_path), str(tmp_path / "data"))


CELLS = [Cell("listops", "softmax", seed=seed) for seed in range(3)]


def save_checkpoint(folder, cell, step):
    run = folder / "runs" / f"{cell.task}-{cell.seed}"
    run.mkdir(parents=True, exist_ok=True)
    (run / "cell.json").write_text(json.dumps({"cell": asdict(cell), "steps": 100}))
    (run / f"checkpoint-{step:09d}.pt").touch()


def test_a_job_whose_time_is_up_three_times_without_progress_is_not_queued_again(job, tmp_path):
    assert job.checkpoint(CELLS) == (job, CELLS)
    assert job.checkpoint(CELLS) == (job, CELLS)
    save_checkpoint(tmp_path, Cell("listops", "linear"), 50)  # a cell of another job
    with pytest.raises(slurm.Stuck):
        job.checkpoint(CELLS)


def test_a_job_that_comes_further_each_time_is_queued_again_for_ever(job, tmp_path):
    for step in range(10, 100, 10):
        for _ in range(2):
            save_checkpoint(tmp_path, CELLS[0], step)
            assert job.checkpoint(CELLS) == (job, CELLS)


def test_a_job_that_is_pre_empted_before_its_time_is_up_is_queued_again_for_ever(job):
    job.seconds, job._began = 3600.0, time.monotonic()
    for _ in range(9):
        assert job.checkpoint(CELLS) == (job, CELLS)


@pytest.mark.parametrize("time, requeued", [("2026-01-01T00:00:00", True), ("None", False)])
def test_a_job_that_is_told_to_end_is_queued_again_if_it_is_pre_empted(job, monkeypatch, time, requeued):
    asked = []

    def scontrol(command, **how):
        asked.append(command[1])
        return subprocess.CompletedProcess(command, 0, stdout=f"JobId={command[-1]} PreemptTime={time} Partition=usual")

    def stop(self, cell):
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(slurm.subprocess, "run", scontrol)
    monkeypatch.setattr(slurm.Supervisor, "run", stop)
    monkeypatch.chdir(job.folder)
    monkeypatch.setenv("LONGSPAN_DATA", "restored afterwards")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(Stopped):
        job(CELLS)
    assert asked == ["show", "requeue"][: 1 + requeued]


def test_a_stuck_cell_leaves_the_outcomes_of_those_before_it_and_none_of_those_after(job, monkeypatch):
    def run(self, cell):
        if cell.seed == 1:
            raise slurm.Stuck
        return Outcome(make_card(seed=cell.seed))

    monkeypatch.setattr(slurm.Supervisor, "run", run)
    monkeypatch.chdir(job.folder)
    monkeypatch.setenv("LONGSPAN_DATA", "restored afterwards")
    first, second, third = job(CELLS)
    assert first.card
    assert isinstance(second, slurm.Stuck)
    assert third is None


def test_the_card_of_a_stuck_cell_says_which_limit_was_too_short_and_the_rest_is_submitted_again(launch, monkeypatch):
    reasons = []
    monkeypatch.setattr(slurm.Slurm, "_fail", lambda self, cell, reason: reasons.append(reason) or Outcome(code=4))
    outcomes, executor = launch(lambda group, number: "stuck" if len(group) == 4 else "result", cells_per_job=4)
    assert executor.submitted == [[0, 1, 2, 3], [2, 3]]
    assert [bool(outcomes[seed].card) for seed in range(4)] == [True, False, True, True]
    assert reasons == [
        "its job came no further in 3 times 240 minutes, which is its time limit; allow more with --set-slurm time=960"
    ]
