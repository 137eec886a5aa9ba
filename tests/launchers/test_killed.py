"""A worker that is killed: its cell continues in another; a cell that kills every worker gets a card that says so."""

import pytest

from longspan.core.cell import Cell
from longspan.launchers import supervisor
from longspan.launchers.limits import Limits
from longspan.launchers.process import Died
from tests.results.factory import make_card

KILLED = "its process was ended by SIGKILL"


@pytest.fixture
def supervised(monkeypatch):
    """Run a cell whose workers answer or die in turn; returns the outcome and the requests they got."""

    def run(*fates):
        left, asked = list(fates), []

        class Worker:
            stopped_by = deadline = None
            out_of_time = False

            def __init__(self, *words):
                pass

            def ask(self, request, seconds):
                asked.append(request)
                if request["do"] == "fail":
                    return {"error": request["reason"], "code": 4}
                if isinstance(fate := left.pop(0), Died):
                    raise fate
                return fate if "stopped" in fate else {"card": fate}

            def end(self):
                pass

        monkeypatch.setattr(supervisor, "Worker", Worker)
        with supervisor.Supervisor(Limits(), out="out", device="cpu") as one:
            return one.run(Cell("listops", "softmax")), [request["do"] for request in asked]

    return run


def test_a_cell_whose_worker_is_killed_goes_on_in_another(supervised, capsys):
    outcome, asked = supervised(Died(KILLED, killed=True), Died(KILLED, killed=True), make_card())
    assert outcome.card
    assert asked == ["run"] * 3
    assert capsys.readouterr().err.count(f"listops softmax seed 0: {KILLED}; it goes on in another.") == 2


def test_a_cell_whose_worker_alone_is_told_to_stop_goes_on_in_another(supervised):
    """A scheduler signals every process of a job, and this worker received the signal first."""
    outcome, asked = supervised({"stopped": 15}, make_card())
    assert outcome.card
    assert asked == ["run", "run"]


def test_a_poisoned_cell_has_three_tries_and_then_a_fail_card(supervised):
    outcome, asked = supervised(*[Died(KILLED, killed=True)] * 3)
    assert outcome.sentence == f"{KILLED}, 3 times"
    assert asked == ["run", "run", "run", "fail"]


def test_what_a_cell_does_to_itself_is_not_tried_again(supervised):
    outcome, asked = supervised(Died("its process ended with exit code 7"))
    assert outcome.sentence == "its process ended with exit code 7"
    assert asked == ["run", "fail"]
