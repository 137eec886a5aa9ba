"""Several cells share a device, each in its own lane, until none is left, time is up or a signal comes."""

import os
import signal
import threading
import time

import pytest

from longspan.core import threads
from longspan.core.cell import Cell
from longspan.core.errors import RunFailed
from longspan.core.signals import Stopped
from longspan.core.threads import COMPILERS, share_compilers
from longspan.launchers import base, launch, supervisor
from longspan.launchers.base import Budget
from longspan.launchers.limits import Limits
from longspan.launchers.local import Local
from longspan.launchers.mps import CONTROL, PIPE, multi_process_service
from longspan.launchers.process import Died
from longspan.launchers.supervisor import Supervisor
from longspan.runs.unfinished import unfinished
from tests.launchers.in_process import InProcess
from tests.launchers.test_isolation import TINY
from tests.results.factory import make_card

NO_LIMITS = Limits(None, 2**40)


def of(seeds):
    """Hands out cells of these seeds."""
    waiting = [Cell("listops", "softmax", seed=seed) for seed in seeds]
    return lambda left: waiting.pop(0) if waiting else None


class Fake(InProcess):
    """Answers with a card once every lane has asked."""

    together: threading.Barrier

    def __init__(self, memory_bytes, adopted, environment):
        self.memory_bytes = memory_bytes

    def ask(self, request, seconds):
        self.together.wait(timeout=30)
        assert request["how"].get("shared", False) is (self.together.parties > 1)
        return {"card": make_card(seed=request["cell"]["seed"])}


def open_lanes(count, budget=None, **how):
    return Local(NO_LIMITS, Budget(budget), share=count, **({"out": "out", "device": "cpu"} | how))


def test_a_worker_that_dies_before_any_cell_began_is_no_surprise(monkeypatch):
    def die(*_):
        raise Died("its processes used 2 MiB, over the memory limit of 1 MiB")

    monkeypatch.setattr(supervisor, "Worker", Fake)
    monkeypatch.setattr(Fake, "ask", die)
    with open_lanes(1) as open_ones, pytest.raises(RunFailed, match="over the memory limit of 1 MiB"):
        open_ones.plan([Cell("listops", "softmax")])


@pytest.mark.parametrize("count", [1, 3])
def test_as_many_cells_run_at_once_as_there_are_lanes(monkeypatch, count):
    monkeypatch.setattr(supervisor, "Worker", Fake)
    monkeypatch.setattr(Fake, "together", threading.Barrier(count), raising=False)
    with open_lanes(count) as open_ones:
        ended = list(open_ones.run(of(range(6))))
        assert {one._shared.memory_bytes for one in open_ones.supervisors} == {2**40 // count}
    assert sorted(cell.seed for cell, _ in ended) == list(range(6))
    assert all(outcome.card["seed"] == cell.seed for cell, outcome in ended)


def test_a_cell_that_is_out_of_memory_beside_others_is_tried_again_alone(monkeypatch, capsys):
    asked, ended_workers = [], []

    class Cramped(InProcess):
        def ask(self, request, seconds):
            seed, shared = request["cell"]["seed"], request["how"]["shared"]
            asked.append((seed, shared))
            if seed == 1 and shared:
                return {"error": "listops softmax seed 1 was out of memory.", "code": 4, "crowded": True}
            return {"card": make_card(seed=seed)}

        def end(self):
            ended_workers.append(self)

    monkeypatch.setattr(supervisor, "Worker", Cramped)
    with open_lanes(2) as launcher:
        ended = list(launcher.run(of(range(4))))
        assert len(ended_workers) >= 2  # each frees its device memory
    assert sorted(cell.seed for cell, _ in ended) == [0, 1, 2, 3]
    assert ended[-1][0].seed == 1
    assert all(outcome.card is not None for _, outcome in ended)
    assert asked[-1] == (1, False)
    assert "tried again when the others have ended" in capsys.readouterr().err


def test_a_cell_that_is_crowded_when_time_is_up_is_unfinished(monkeypatch):
    class Cramped(InProcess):
        def ask(self, request, seconds):
            time.sleep(0.3)
            return {"error": "out of memory.", "code": 4, "crowded": True}

    monkeypatch.setattr(supervisor, "Worker", Cramped)
    with open_lanes(2, budget=0.2) as launcher:
        ended = list(launcher.run(of(range(2))))
    assert [outcome.unfinished for _, outcome in ended] == [True, True]


@pytest.mark.parametrize(
    "devices, share, cells, groups",
    [
        (1, 1, 8, [None, "GPU-b", "GPU-c", "GPU-d", "GPU-e"]),
        (2, 1, 8, [None, "GPU-c,GPU-d"]),
        (1, 2, 4, [None, None, "GPU-b", "GPU-b"]),
        (1, 1, 1, [None]),
        (6, 1, 8, [None]),
    ],
)
def test_every_group_of_gpus_runs_cells_at_the_same_time(monkeypatch, devices, share, cells, groups):
    """Workers of the first group see all GPUs and use the first ones."""
    together, seen = threading.Barrier(len(groups)), []

    class OnGpus(InProcess):
        def __init__(self, memory_bytes, adopted, environment):
            self.gpus = environment.get("CUDA_VISIBLE_DEVICES")

        def ask(self, request, seconds):
            if request["do"] == "plan":
                return {"planned": len(request["cells"]), "gpus": ["GPU-a", "GPU-b", "GPU-c", "GPU-d", "GPU-e"]}
            if len(seen) < len(groups):
                seen.append(self.gpus)
                together.wait(timeout=30)
            assert request["how"].get("shared", False) is (share > 1)
            return {"card": make_card(seed=request["cell"]["seed"])}

    monkeypatch.setattr(supervisor, "Worker", OnGpus)
    with open_lanes(share, devices=devices) as launcher:
        launcher.plan([Cell("listops", "softmax", seed=seed) for seed in range(cells)])
        ended = [cell.seed for cell, _ in launcher.run(of(range(cells)))]
    assert sorted(ended) == list(range(cells))
    assert sorted(seen, key=str) == sorted(groups, key=str)


def test_cells_side_by_side_share_the_cores_when_they_are_compiled(monkeypatch):
    monkeypatch.delenv(COMPILERS, raising=False)
    monkeypatch.setattr(threads, "available_cpus", lambda: 16)
    with open_lanes(5) as launcher:
        assert [one.environment[COMPILERS] for one in launcher.supervisors] == ["3"] * 5
    with open_lanes(1) as launcher:
        assert COMPILERS not in launcher.supervisors[0].environment
    monkeypatch.setenv(COMPILERS, "2")  # an explicit setting is kept
    assert share_compilers(5) == {}


def test_cells_are_launched_from_python_too(monkeypatch):
    class Answers(InProcess):
        def ask(self, request, seconds):
            if request["do"] == "plan":
                return {"planned": len(request["cells"]), "gpus": []}
            return {"card": make_card(seed=request["cell"]["seed"])}

    monkeypatch.setattr(supervisor, "Worker", Answers)
    cells = [Cell("listops", "softmax", seed=seed) for seed in range(3)]
    assert [(cell, outcome.card["seed"]) for cell, outcome in launch(cells, device="cpu")] == [
        (cell, cell.seed) for cell in cells
    ]


def test_a_dead_worker_is_the_outcome_of_its_cell_alone(monkeypatch):
    def ask(self, request, seconds):
        if request["do"] == "fail":
            return {"error": "it is dead", "code": 4}
        if request["cell"]["seed"] == 1:
            raise Died("it died")
        return {"card": make_card(seed=request["cell"]["seed"])}

    monkeypatch.setattr(supervisor, "Worker", Fake)
    monkeypatch.setattr(Fake, "ask", ask)
    with open_lanes(2) as open_ones:
        outcomes = {cell.seed: outcome.code for cell, outcome in open_ones.run(of(range(4)))}
    assert outcomes == {0: 0, 1: 4, 2: 0, 3: 0}


def test_nothing_is_begun_when_the_budget_is_spent(monkeypatch):
    monkeypatch.setattr(supervisor, "Worker", Fake)
    for count in (1, 2):
        with open_lanes(count, budget=1e-9) as open_ones:
            assert list(open_ones.run(of(range(3)))) == []


def test_a_budget_keeps_some_time_for_saving(monkeypatch):
    monkeypatch.setattr(base.time, "monotonic", lambda: 1000.0)
    assert (Budget(100.0).deadline, Budget(3600.0).deadline, Budget().deadline) == (1095.0, 4585.0, None)
    assert (Budget(100.0).left(), Budget().left()) == (95.0, None)


def test_a_signal_stops_all_lanes_and_no_other_cell_begins(monkeypatch):
    asked, stopped = threading.Barrier(3), []

    def ask(self, request, seconds):
        asked.wait(timeout=30)
        while self.stopped_by is None:
            time.sleep(0.001)
        return {"stopped": self.stopped_by}

    def stop(self, number):
        self.stopped_by = number
        stopped.append(self)

    monkeypatch.setattr(supervisor, "Worker", Fake)
    monkeypatch.setattr(Fake, "ask", ask)
    monkeypatch.setattr(Fake, "stop", stop, raising=False)

    def interrupt():
        asked.wait(timeout=30)
        while not all(one._busy for one in open_ones.supervisors):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    with open_lanes(2) as open_ones:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(Stopped, match="SIGTERM"):
            list(open_ones.run(of(range(5))))
        thread.join()
    assert len(set(map(id, stopped))) == 2


@pytest.mark.full
def test_a_cell_whose_time_is_up_is_saved_and_goes_on_later(tmp_path):
    """With a real worker: the deadline comes once the first state is on disk."""
    cell = Cell("listops", "softmax", overrides=TINY | {"recipe.steps": 2000, "recipe.evaluate_every": 1000})
    how = {"out": str(tmp_path), "device": "cpu", "data": str(tmp_path / "data"), "progress": False}

    def end_its_time(one):
        while not (busy := one._busy) or not list((tmp_path / "runs").glob("*/begun.json")):
            time.sleep(0.01)
        busy.deadline = 0.0

    with Supervisor(NO_LIMITS, **how) as one:
        thread = threading.Thread(target=end_its_time, args=(one,))
        thread.start()
        outcome = one.run(cell)
        thread.join()
        assert (outcome.card, outcome.code, outcome.unfinished) == (None, 0, True)
        (waiting,) = unfinished(tmp_path)
        assert 0 < waiting.step < 2000
        card = one.run(cell).card
    assert (card["status"], card["timing"]["resumed"]) == ("ok", 1)


# --------------------------------------------------------------------------------------- NVIDIA's multi-process service


@pytest.fixture
def control(tmp_path, monkeypatch):
    """A control program that logs its requests."""

    def make(code=0):
        program = tmp_path / CONTROL
        program.write_text(f'#!/bin/sh\necho "$@" $(cat) in ${PIPE} >> {tmp_path}/asked\nexit {code}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.delenv(PIPE, raising=False)
        return tmp_path / "asked"

    return make


def test_the_service_is_started_for_the_block_and_ended_after_it(control):
    asked = control()
    with multi_process_service() as served:
        assert served
        pipe = os.environ[PIPE]
        assert os.path.isdir(pipe)
    assert PIPE not in os.environ
    assert not os.path.exists(pipe)
    assert [line.split(" in ") for line in asked.read_text().splitlines()] == [["-d", pipe], ["quit", pipe]]


def test_without_the_service_or_where_it_does_not_start_cells_take_turns(control, monkeypatch, capsys):
    control(code=1)
    with multi_process_service() as served:
        assert not served
        assert PIPE not in os.environ
    assert "did not start: exit code 1" in capsys.readouterr().err
    with multi_process_service(False) as served:
        assert not served
    monkeypatch.setenv("PATH", "/nowhere")
    with multi_process_service() as served:
        assert not served


def test_a_service_that_is_running_is_used_and_left_alone(control, monkeypatch):
    asked = control()
    monkeypatch.setenv(PIPE, "/theirs")
    with multi_process_service() as served:
        assert served
    assert os.environ[PIPE] == "/theirs"
    assert not asked.exists()
