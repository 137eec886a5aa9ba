"""What is retried on a cluster, and how often: a stand-in for Ray runs tasks where they are submitted."""

import sys
from types import SimpleNamespace

import pytest

from longspan.core.cell import Cell
from longspan.core.errors import UsageError
from longspan.launchers import open_launcher
from longspan.launchers import ray as ray_launcher
from longspan.launchers.base import Budget, Outcome
from longspan.launchers.limits import Limits
from tests.results.factory import make_card


class RayError(Exception):
    pass


class FakeRay:
    """Tasks run at once; what they raise is kept until their result is requested."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, resources):
        self.resources, self.asked, self.cancelled = resources, [], []

    def init(self, **how):
        self.address = how["address"]

    def shutdown(self):
        pass

    def cluster_resources(self):
        return self.resources

    def nodes(self):
        return [{"Alive": True, "Resources": self.resources}, {"Alive": False, "Resources": {"CPU": 99.0}}]

    def remote(self, function):
        def submit(*arguments):
            try:
                return SimpleNamespace(result=function(*arguments), error=None)
            except RayError as error:
                return SimpleNamespace(result=None, error=error)

        def options(**resources):
            self.asked.append(resources)
            return SimpleNamespace(remote=lambda *arguments: Reference(submit(*arguments)))

        return SimpleNamespace(options=options)

    def wait(self, references, num_returns, timeout):
        return references[:num_returns], references[num_returns:]

    def get(self, reference):
        if reference.done.error is not None:
            raise reference.done.error
        return reference.done.result

    def cancel(self, reference):
        self.cancelled.append(reference)


class Reference:
    def __init__(self, done):
        self.done = done


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Run cells of some seeds with `run` deciding each attempt; the outcomes, and the number of attempts of each."""

    def launch(run, seeds=3, resources=None, fail=None, **how):
        fake = FakeRay({"CPU": 2.0} if resources is None else resources)
        monkeypatch.setitem(sys.modules, "ray", fake)
        tried = {}

        def run_here(cell, request):
            tried[cell.seed] = tried.get(cell.seed, 0) + 1
            return run(cell, tried[cell.seed])

        monkeypatch.setattr(ray_launcher, "run_here", run_here)
        monkeypatch.setattr(ray_launcher, "fail_here", fail or (lambda cell, died, request: Outcome(None, died, 4)))
        waiting = [Cell("listops", "softmax", seed=seed) for seed in range(seeds)]
        given = {"out": str(tmp_path / "out"), "device": "auto"} | how
        with open_launcher("ray", Limits(), Budget(), **given) as launcher:
            ended = list(launcher.run(lambda left: waiting.pop(0) if waiting else None))
        assert not list((tmp_path / "out").iterdir())
        return {cell.seed: outcome for cell, outcome in ended}, tried, fake

    return launch


def card_of(cell, number):
    return Outcome(make_card(seed=cell.seed))


def test_every_cell_has_its_outcome_once(launch):
    outcomes, tried, fake = launch(card_of, seeds=50)
    assert sorted(outcomes) == list(range(50))
    assert set(tried.values()) == {1}
    assert fake.address == "local"


def test_a_cell_whose_node_died_is_run_again(launch):
    def run(cell, number):
        if cell.seed == 1 and number < 3:
            raise RayError("the node died")
        return card_of(cell, number)

    outcomes, tried, _ = launch(run)
    assert all(outcome.card for outcome in outcomes.values())
    assert tried == {0: 1, 1: 3, 2: 1}


def test_a_cell_that_kills_its_process_three_times_has_failed(launch):
    def run(cell, number):
        if cell.seed == 1:
            raise RayError("the worker died\nand more")
        return card_of(cell, number)

    outcomes, tried, _ = launch(run)
    assert tried == {0: 1, 1: 3, 2: 1}
    assert outcomes[1] == Outcome(None, "its process on the cluster died 3 times, at last: the worker died", 4)


def test_where_its_card_cannot_be_written_either_there_is_a_sentence(launch):
    def die(*_):
        raise RayError("no node is left")

    outcomes, _, _ = launch(die, fail=die, seeds=1)
    assert outcomes[0].code == 4
    assert "listops softmax failed: its process on the cluster died 3 times" in outcomes[0].sentence


def test_a_full_disk_of_one_node_is_tried_elsewhere_and_a_lasting_one_is_told(launch):
    full = Outcome(sentence="Cannot write x (No space left on device).", code=4, storage=True)
    outcomes, tried, _ = launch(lambda cell, number: full if number < 3 or cell.seed == 0 else card_of(cell, number))
    assert set(tried.values()) == {3}
    assert outcomes[0] == full
    assert outcomes[1].card
    assert outcomes[2].card


@pytest.mark.parametrize(
    "device, devices, share, gpus", [("auto", 1, 1, 1.0), ("auto", 2, 1, 2.0), ("cuda", 1, 4, 0.25), ("cpu", 1, 1, 0.0)]
)
def test_a_cell_asks_for_its_cores_and_gpus(launch, device, devices, share, gpus):
    how = {"device": device, "devices": devices, "share": share, "cpus": 3, "address": "head:6379"}
    _, _, fake = launch(card_of, seeds=1, resources={"CPU": 12.0, "GPU": 4.0}, **how)
    assert fake.asked[0] == {"num_cpus": 3.0, "num_gpus": gpus, "max_retries": 0}
    assert fake.address == "head:6379"


def test_a_gpu_that_the_cluster_lacks_is_refused(launch, tmp_path):
    with pytest.raises(UsageError, match="the Ray cluster has no GPU"):
        launch(card_of, device="cuda")
    assert not list((tmp_path / "out").iterdir())


def test_more_cores_than_any_node_has_are_waited_for_with_a_line(launch, capsys):
    launch(card_of, cpus=2)
    assert not capsys.readouterr().err
    launch(card_of, cpus=16)
    assert capsys.readouterr().err == "No node of the cluster has 16 cores and 0 GPUs; waiting for one.\n"


def test_without_the_package_there_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'longspan\[ray\]'"):
        open_launcher("ray", Limits(), Budget(), out=str(tmp_path), device="cpu")
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UsageError, match=r"pip install 'longspan\[slurm\]'"):
        open_launcher("slurm", Limits(), Budget(), out=str(tmp_path), device="cpu")
    with pytest.raises(UsageError, match=r"No launcher named 'rai'\. Did you mean 'ray'\?"):
        open_launcher("rai", Limits(), Budget(), out=str(tmp_path), device="cpu")
