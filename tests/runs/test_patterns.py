"""One cell of a network with three patterns, from the request to the card, the board and back to the model."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from longspan import runs, tasks
from longspan.backbones.slots import filled
from longspan.cli import app
from longspan.core.errors import UsageError
from longspan.results import card as cards
from longspan.results import collect
from longspan.results.board import board
from longspan.results.render import FORMS, render
from longspan.results.store import Store
from longspan.results.verify import verify
from longspan.runs import Cell, RunPlan
from tests.launchers.in_process import InProcess
from tests.training import copying
from tests.training.copying import Copying

TASK = "copying"
NS, CS, CC = "noncausal_self", "causal_self", "causal_cross"
CELL = Cell(TASK, "abc(slots=3)")

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder, and a registry that lists the small task beside the real ones."""
    get, names = tasks.get, tasks.names
    monkeypatch.setattr(tasks, "get", lambda name: Copying() if name == TASK else get(name))
    monkeypatch.setattr(tasks, "names", lambda: [*names(), TASK])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LONGSPAN_DATA", raising=False)
    return tmp_path


def slots(card):
    """The classes in the slots of each pattern, as recorded on the card."""
    found = {}
    for text in card["slots"].values():
        name, _, pattern = text.partition(" ")
        found.setdefault(pattern.strip("()"), set()).add(name)
    return found


def test_without_a_word_the_first_pattern_of_the_task_is_replaced():
    assert RunPlan.of(CELL).pattern == CC


@pytest.mark.parametrize("asked", ["CS+NS", "noncausal_self+causal_self", "ns + cs+NS"])
def test_several_patterns_have_one_spelling(asked):
    plan = RunPlan.of(replace(CELL, pattern=asked))
    assert plan.pattern == plan.identity["pattern"] == f"{NS}+{CS}"
    assert collect.pattern_name(asked) == plan.pattern


@pytest.mark.parametrize(
    "mechanism, pattern, sentence",
    [
        ("abc", "NC", "has no slot for noncausal_cross; its slots are causal_cross, noncausal_self, causal_self"),
        ("abc", "NS+NC", "has no slot for noncausal_cross"),
        ("abc", "NS+", "No pattern named ''"),
        ("local", "CS+CC", "local cannot run as causal_cross"),
    ],
)
def test_a_pattern_that_cannot_be_is_refused_with_a_sentence(mechanism, pattern, sentence):
    with pytest.raises(UsageError, match=sentence):
        RunPlan.of(replace(CELL, mechanism=mechanism, pattern=pattern))


def test_a_run_says_what_sat_in_every_slot_and_its_score_is_no_percentage(folder):
    made = {p: runs.run(replace(CELL, pattern=p), weights=p == "NS+CC", progress=False) for p in ("CS", "NS+CC")}
    assert slots(made["CS"]) == {NS: {"Softmax"}, CS: {"ABC"}, CC: {"Softmax"}}
    assert slots(made["NS+CC"]) == {NS: {"ABC"}, CS: {"Softmax"}, CC: {"ABC"}}
    assert made["NS+CC"]["pattern"] == f"{NS}+{CC}"
    assert made["CS"]["parameters"]["total"] - made["CS"]["parameters"]["baseline"] == 2 * 4 * 3  # 1 slot of 3
    assert made["NS+CC"]["parameters"]["total"] - made["NS+CC"]["parameters"]["baseline"] == 3 * 2 * 4 * 3

    score = made["CS"]["score"]
    assert (score["name"], score["unit"], score["higher_is_better"]) == ("perplexity", "plain", False)
    assert made["CS"]["metrics"]["valid"]["perplexity"]["count"] > 6  # tokens, not rows

    paths = sorted((folder / "out" / "cards").rglob("*.json"))
    for path in paths:
        findings = {finding.check: finding for finding in verify(path)}
        not_asked = {name for name, finding in findings.items() if finding.status != "kept"}
        assert not_asked == {"labels", "settings"}  # the task has no classes, and its protocol is that of the test
        assert "perplexity" in findings["score"].detail
    both = next(path for path in paths if "noncausal_self_causal_cross" in path.name)
    assert runs.load(both).encoder[0].attention.pattern == NS

    view = board(Store(folder / "out" / "cards").cards(), ["copying"], "longspan", "smoke", CS)
    value = f"{score['value']:.4g}"
    for form in FORMS:
        assert value in render(view, form) or form in ("csv", "json")
        assert f"{100 * score['value']:.2f}" not in render(view, form)
    assert runs.run(replace(CELL, pattern="CC+NS"), progress=False)["sha256"] == made["NS+CC"]["sha256"]


def test_the_protocols_own_mechanisms_stay_where_nothing_is_replaced():
    plan = RunPlan.of(replace(CELL, pattern="CC", overrides={"model.encoder": "linear"}))
    card = {"slots": filled(plan.model())}
    assert slots(card) == {NS: {"LinearAttention"}, CS: {"Softmax"}, CC: {"ABC"}}


def test_a_damaged_prediction_breaks_the_seal_of_the_score(folder):
    import numpy as np

    runs.run(CELL, progress=False)
    (path,) = (folder / "out" / "cards").rglob("*.json")
    archive = path.with_name(cards.read(path)["files"]["predictions"])
    with np.load(archive) as arrays:
        content = dict(arrays)
    content["nats"] = content["nats"] * 1.01
    np.savez_compressed(archive, **content)
    assert {f.check: f.status for f in verify(path)}["score"] == "broken"


# -------------------------------------------------------------------------------------------------------- command line


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_params_counts_each_pattern_by_itself_and_several_at_once():
    rows = json.loads(call("params", TASK, "-a", "softmax", "abc(slots=3)", "--tier", "smoke", "--json").stdout)
    abc = {row["pattern"]: row for row in rows if row["mechanism"] == "abc(slots=3)"}
    assert {pattern: row["increment"] for pattern, row in abc.items()} == {CC: 24, NS: 48, CS: 24}
    for row in rows:
        assert row["total"] == sum(row["parts"].values())
        assert row["ratio"] == pytest.approx(row["total"] / (row["total"] - row["increment"]))
        assert row["within_rule"] == (row["ratio"] <= 1.1)
        assert (row["task"], row["backbone"], row["protocol"]) == ("copying", "toy", "longspan")
    (both,) = json.loads(
        call(
            "params", TASK, "-a", "abc(slots=3)", "--pattern", "CS", "--pattern", "NS", *("--tier", "smoke"), "--json"
        ).stdout
    )
    assert (both["pattern"], both["increment"]) == (f"{NS}+{CS}", 72)


def test_params_agrees_with_the_networks_that_are_really_built():
    for row in json.loads(call("params", TASK, "--pattern", CS, "--tier", "smoke", "--json").stdout):
        plan = RunPlan.of(Cell(TASK, row["mechanism"], CS))
        assert row["total"] == sum(parameter.numel() for parameter in plan.model().parameters())


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["params", "listop"], "Did you mean 'listops'?"),
        (["params", "listops", "--pattern", "CS"], "has no slot for causal_self"),
        (["params", "listops", "--protocol", "cab-2024"], "has no protocol"),
        (["params", TASK, "-a", "fnet", "--pattern", "CS", "--tier", "smoke"], "fnet cannot run as CS"),
    ],
)
def test_a_count_that_cannot_be_is_refused_with_a_sentence(words, sentence):
    result = call(*words)
    assert result.exit_code == 2
    assert sentence in result.stderr


@pytest.mark.parametrize("words", [["--pattern", "NS+CS"], ["--pattern", "CS", "--pattern", "NS"]])
def test_run_takes_patterns_joined_or_repeated(folder, words, monkeypatch):
    monkeypatch.setattr("longspan.launchers.supervisor.Worker", InProcess)
    result = call("run", f"{copying.__file__}:Copying", "-a", "softmax", *words, "--set", "recipe.steps=1")
    assert result.exit_code == 0, result.output
    assert "NS+CS" in result.stdout
    assert "perplexity" in result.stdout
    (card,) = Store(folder / "out" / "cards").cards()
    assert card["pattern"] == f"{NS}+{CS}"
