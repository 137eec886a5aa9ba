"""`run` checks a plug-in once per source; a broken promise is recorded on the card and stops nothing."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from longspan import conformance, runs
from longspan.core.errors import first_few
from longspan.results import official
from longspan.results.board import board
from longspan.results.conformance import load
from longspan.results.store import Store
from longspan.runs import Cell, checked

DATA = {"data.train": 64, "data.valid": 16, "data.test": 16, "data.shorter_than": 60}
TINY = DATA | {"model.dim": 16, "model.layers": 1, "model.mlp": 16, "recipe.batch_size": 8}
TINY |= {"recipe.steps": 4, "recipe.evaluate_every": 2}
SOUND = (Path(__file__).parents[2] / "docs" / "my_attention.py").read_text()
BLIND = SOUND.replace("weight * key_mask[:, None, :, None], v", "weight, v")  # does not mask padding
FIRST = "        weight = "  # start of attend's body


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def run(tmp_path, data):
    """Writes a plug-in and runs it."""

    def run(text=SOUND, *, out="out", seed=0, **how):
        (tmp_path / "mine.py").write_text(text)
        cell = Cell("listops", f"{tmp_path / 'mine.py'}:Mine", seed=seed, overrides=TINY)
        return runs.run(cell, out=tmp_path / out, data=data, device="cpu", progress=False, **how)

    return run


@pytest.fixture
def quick(monkeypatch):
    """A check that returns at once, and a list of its calls."""
    asked = []

    def answer(mechanism, patterns, *, profile):
        asked.append((str(mechanism), *(pattern.value for pattern in patterns), profile))
        result = conformance.PromiseResult("shape", "kept", "")
        return [conformance.Report(str(mechanism), patterns[0].value, "cpu", "float32", profile, True, (result,))]

    monkeypatch.setattr(checked.conformance, "check", answer)
    return asked


def test_a_plug_in_is_checked_once_for_each_source(run, quick, tmp_path):
    first, second = run(seed=0), run(seed=1)
    assert first["conformance"] == second["conformance"] == {"status": "kept", "profile": "quick", "broken": []}
    assert quick == [("mine.py:Mine", "noncausal_self", "quick")]
    run(SOUND + "\n# edited")
    assert len(quick) == 2
    run(SOUND, seed=2)  # reverted
    assert len(quick) == 2
    saved, problems = load([tmp_path / "out" / "conformance"])
    assert (len(saved), problems) == (2, [])


def test_a_plug_in_that_keeps_its_promises_is_kept_and_a_built_in_is_not_asked(run, data, tmp_path, capsys):
    assert run()["conformance"]["status"] == "kept"
    assert "breaks" not in capsys.readouterr().err
    cell = Cell("listops", "softmax", overrides=TINY)
    assert "conformance" not in runs.run(cell, out=tmp_path / "out", data=data, device="cpu", progress=False)


def test_a_broken_promise_is_said_in_one_line_and_on_the_card_and_training_goes_on(run, monkeypatch, capsys):
    card = run(BLIND)
    assert (card["status"], card["conformance"]["status"]) == ("ok", "broken")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "breaks" in line]
    assert first_few(map(repr, card["conformance"]["broken"])) in line
    assert line.endswith("so boards will not rank it.")
    monkeypatch.setattr(official, "_tasks", dict)  # with which the settings are those of no protocol
    (row,) = board([{**card, "overrides": {}, "track": "fixed"}], ["listops"], "longspan", "smoke").rows
    assert (row.conformance.status, row.rank) == ("broken", None)


def test_a_check_that_stops_is_a_broken_promise_and_no_abort(run, monkeypatch):
    def stop(*_, **__):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(checked.conformance, "check", stop)
    assert run()["conformance"] == {"status": "broken", "profile": "quick", "broken": ["check"]}


def digests(out):
    ((path, card),) = Store(out / "cards").entries()
    with np.load(path.with_name(card["files"]["predictions"])) as arrays:
        predictions = {name: arrays[name].tobytes() for name in arrays.files}
    weights = path.with_name(card["files"]["weights"]).read_bytes()
    return hashlib.sha256(weights).hexdigest(), predictions


def test_a_score_does_not_depend_on_whether_the_check_ran(run, tmp_path, quick, monkeypatch):
    without = run(out="without")
    monkeypatch.undo()
    asked = run(out="asked")
    for part in ("curve", "metrics", "score", "selected_step", "parameters", "rules"):
        assert asked[part] == without[part], part
    assert digests(tmp_path / "asked") == digests(tmp_path / "without")


MESSY = """
import random
import numpy

def disturb():
    torch.set_default_dtype(torch.float64)
    return torch.rand(3), random.random(), numpy.random.rand()

"""


def test_the_check_leaves_random_states_and_the_default_dtype_as_they_were(tmp_path):
    (tmp_path / "mine.py").write_text(f"{SOUND}\n{MESSY}".replace(FIRST, f"        disturb()\n{FIRST}"))
    before = torch.get_rng_state(), torch.get_default_dtype(), np.random.get_state()[1].tolist()
    conformance.check(f"{tmp_path / 'mine.py'}:Mine", profile="quick")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (torch.get_default_dtype(), np.random.get_state()[1].tolist()) == before[1:]  # beartype draws from random


READER = """
    def __init__(self, *words, **shell):
        pretrained()
        super().__init__(*words, **shell)

@functools.cache
def pretrained():
    return Path(__file__).with_name("weights.txt").read_text()
"""


def test_a_file_that_is_read_once_in_the_check_still_breaks_the_rule(run, tmp_path):
    (tmp_path / "weights.txt").write_text("0.5")
    card = run(f"import functools\nfrom pathlib import Path\n{SOUND}\n{READER}")
    assert card["rules"]["no pretraining"]["kept"] is False
    assert "weights.txt" in card["rules"]["no pretraining"]["finding"]
