"""One cell from data to card: killed, doubled, repeated or failing, it leaves one valid card or a clear error."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from longspan import attentions, runs, tasks
from longspan.attentions import Pattern
from longspan.core import lease, lock
from longspan.core.environment import choose_device
from longspan.core.errors import Crowded, PluginError, RunFailed, StorageError, UnsupportedPattern, UsageError
from longspan.results.store import Store
from longspan.results.verify import verify
from longspan.runs import Cell, attempt, fingerprint, train
from longspan.runs.folder import belonging

ROOT = Path(__file__).parents[1]
DATA = {"data.train": 256, "data.valid": 65, "data.test": 128, "data.shorter_than": 100}
SMALL = DATA | {"model.dim": 16, "model.layers": 1, "model.mlp": 16, "recipe.batch_size": 8}
TINY = SMALL | {"recipe.steps": 4, "recipe.evaluate_every": 2}
LONG = SMALL | {"recipe.steps": 300, "recipe.evaluate_every": 20, "model.dropout": 0.1, "recipe.average": 0.9}

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def run(tmp_path, data):
    """A cell run in this process, under a folder of the test's own."""

    def run(mechanism="softmax", overrides=TINY, *, task="listops", out=tmp_path / "out", seed=0, **how):
        cell = Cell(task, mechanism, seed=seed, overrides=overrides)
        return runs.run(cell, **({"out": out, "data": data, "device": "cpu", "progress": False} | how))

    return run


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, data):
    out = tmp_path_factory.mktemp("unbroken")
    runs.run(Cell("listops", "softmax", overrides=LONG), out=out, data=data, device="cpu", progress=False)
    return only_card(out)


def only_card(out):
    """The path and content of the only card in a store."""
    (found,) = Store(out / "cards").entries()
    return found


def no_training(*_, **__):
    raise AssertionError("this cell was trained again")


def assert_same_outcome(one, other):
    for part in ("curve", "metrics", "score", "selected_step", "parameters", "dataset", "settings"):
        assert one[part] == other[part], part


def predictions(path, card):
    with np.load(path.with_name(card["files"]["predictions"])) as arrays:
        return {name: arrays[name] for name in arrays.files}


# ------------------------------------------------------------------------------------------------- processes that die

DRIVER = """
import json, sys, torch
torch.set_num_threads(1)
from longspan import runs
from longspan.training import loop
overrides, out, data = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
loop.SAVE_EVERY_SECONDS = -1
card = runs.run(runs.Cell("listops", "softmax", overrides=overrides), out=out, data=data, device="cpu", progress=False)
print(card["sha256"])
"""


def start(overrides, out, data):
    command = [sys.executable, "-c", DRIVER, json.dumps(overrides), str(out), str(data)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def checkpoints(out):
    """The steps with a checkpoint."""
    return {int(path.stem.split("-")[1]) for path in (out / "runs").glob("*/checkpoint-*.pt")}


def wait_for(process, reached):
    """Wait until `reached()` holds; a process that ends first, or never gets there, fails the test."""
    deadline = time.monotonic() + 120
    while not reached():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the process did not get there in two minutes"
        time.sleep(0.005)


def stopped_at(step, out, data, number):
    """Signal a process once it has itself saved a checkpoint at `step` or later; returns its stderr."""
    before = checkpoints(out)
    process = start(LONG, out, data)
    try:
        wait_for(process, lambda: max(checkpoints(out) - before, default=0) >= step)
        time.sleep(random.random() / 20)  # a random point between two saves, or within one
        process.send_signal(number)
        return process.communicate(timeout=60)[1]
    finally:
        process.kill()


@pytest.mark.full  # the kill fuzzer does the same in forked processes
def test_killed_three_times_a_run_gives_the_card_of_an_unbroken_one(unbroken, run, tmp_path, data):
    out = tmp_path / "out"
    for number, step in enumerate(sorted(random.sample(range(1, 120), 3))):
        stopped_at(step, out, data, signal.SIGKILL)
        assert list(Store(out / "cards").entries()) == []
        if number == 1:
            newest = sorted((out / "runs").glob("*/checkpoint-*.pt"))[-1]
            newest.write_bytes(newest.read_bytes()[:-1_000])
    card = run(overrides=LONG)
    assert_same_outcome(card, unbroken[1])
    path, stored = only_card(out)
    assert stored == card
    assert card["timing"]["resumed"] in (2, 3)  # the damaged checkpoint may be the only one of its process
    mine, theirs = predictions(path, card), predictions(*unbroken)
    assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)
    assert not list((out / "runs").glob("*/checkpoint-*.pt")), "what only an unfinished run needs is gone"
    assert not list(out.rglob("*.part"))
    assert logged(path, card) == card["curve"]


def test_ctrl_c_saves_and_a_second_call_goes_on(unbroken, run, tmp_path, data):
    out = tmp_path / "out"
    errors = stopped_at(20, out, data, signal.SIGINT)
    assert "KeyboardInterrupt" in errors
    (waiting,) = runs.unfinished(out)
    assert waiting.step == max(checkpoints(out)) >= 20
    assert (waiting.steps, waiting.cell.task, waiting.cell.mechanism) == (300, "listops", "softmax")
    card = run(overrides=LONG)
    assert_same_outcome(card, unbroken[1])
    assert card["timing"]["resumed"] == 1
    assert runs.unfinished(out) == []


def test_two_processes_with_one_cell_make_one_card(tmp_path, data):
    processes = [start(TINY | {"recipe.steps": 60}, tmp_path / "out", data) for _ in range(2)]
    answers = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], answers
    _, card = only_card(tmp_path / "out")
    assert [said.strip() for said, _ in answers] == [card["sha256"]] * 2


def test_a_run_that_another_machine_took_over_stops_and_waits_for_its_card(run, tmp_path, monkeypatch, capfd):
    """The other machine dies in turn, and the first continues the run."""
    monkeypatch.setattr(lease, "PATIENCE", 0.3)
    monkeypatch.setattr(lock, "POLL_AFAR", 0.02)
    trained, calls = attempt.train, []

    def taken_over(*arguments, folder, **how):
        calls.append(folder)
        if len(calls) == 1:
            theirs = '{"host": "node7", "machine": "another", "pid": 77}'
            (folder / ".lock.2.lease").write_text(f"{'f' * 32} 000000000000\n{theirs}\n")
        return trained(*arguments, folder=folder, **how)

    monkeypatch.setattr(attempt, "train", taken_over)
    card = run()
    assert only_card(tmp_path / "out")[1] == card
    assert len(calls) == 2
    errors = capfd.readouterr().err
    assert "was taken over (Process 77 on node7)" in errors
    assert "Process 77 on node7 is busy with the run listops softmax seed 0; waiting for it." in errors


# --------------------------------------------------------------------------------------------------------------- cards


def logged(path, card):
    with path.with_name(card["files"]["log"]).open(newline="") as file:
        return [{n: float(value) for n, value in row.items()} for row in csv.DictReader(file)]


def test_a_card_can_be_verified_from_what_lies_beside_it(unbroken):
    path, card = unbroken
    assert [(finding.check, finding.status) for finding in verify(path)] == [
        ("card", "kept"),
        ("files", "kept"),
        ("numbers", "kept"),
        ("settings", "kept"),
        ("labels", "kept"),
        ("score", "kept"),
    ]
    assert set(card["files_sha256"]) == {"log", "predictions", "weights"}
    assert card["environment"]["threads"] == torch.get_num_threads()
    kept = predictions(path, card)
    assert (kept["prediction"] == kept["label"]).mean() == card["score"]["value"]
    assert card["score"]["value"] == card["metrics"]["test"]["accuracy"]["value"]
    assert card["score"]["count"] == len(kept["label"]) == 128
    assert logged(path, card) == card["curve"]


def test_a_card_says_what_was_run(unbroken, data):
    _, card = unbroken
    assert (card["status"], card["reason"], card["track"]) == ("ok", None, "free")  # overrides leave the board
    assert card["overrides"] == LONG
    assert card["settings"]["recipe"]["steps"] == 300
    assert card["settings"]["data"]["train"] == card["dataset"]["counts"]["train"] == 256
    assert card["dataset"]["variant"] == "generated"
    splits = tasks.get("listops").splits(tasks.get("listops").protocol("longspan", "smoke").override(LONG), data)
    assert card["dataset"]["sha256"] == splits.sha256
    assert card["score"]["chance"] == np.bincount(splits.test.labels).max() / 128
    points = {point["step"]: point for point in card["curve"]}
    assert list(points) == list(range(20, 301, 20))
    assert points[card["selected_step"]]["valid_accuracy"] == max(p["valid_accuracy"] for p in card["curve"])


def test_the_trained_model_comes_back_with_the_same_predictions(unbroken, data):
    path, card = unbroken
    task, model = tasks.get("listops"), runs.load(path)
    rules = task.protocol("longspan", "smoke").override(LONG)
    feed = task.feed(task.splits(rules, data).test, rules, "cpu")
    with torch.no_grad():
        result = task.evaluate(model, feed, np.arange(len(feed)), rules.recipe.evaluation_batch)
    assert not model.training
    assert result.metrics["accuracy"] == card["score"]["value"]
    assert np.array_equal(result.predictions["prediction"], predictions(path, card)["prediction"])


def test_weights_may_be_left_out_and_then_cannot_be_loaded(run, tmp_path):
    card = run(weights=False)
    assert "weights" not in card["files"]
    with pytest.raises(UsageError, match="has no weights beside it; run its cell again"):
        runs.load(only_card(tmp_path / "out")[0])


def test_the_same_seed_gives_the_same_card_and_another_seed_another(run, tmp_path):
    first, again, other = (run(seed=s, out=tmp_path / n) for s, n in ((0, "a"), (0, "b"), (1, "c")))
    assert_same_outcome(first, again)
    assert other["curve"] != first["curve"]
    assert other["dataset"] == first["dataset"], "the data has a seed of its own"


def test_a_finished_cell_is_answered_from_its_card(run, monkeypatch):
    card = run()
    monkeypatch.setattr(attempt, "train", no_training)
    assert run() == card
    with pytest.raises(AssertionError, match="trained again"):
        run(seed=1)


def test_a_pair_among_the_overrides_does_not_hide_a_finished_cell(run, tmp_path, monkeypatch):
    overrides = TINY | {"recipe.betas": (0.8, 0.9)}
    card = run(overrides=overrides)
    assert card["settings"]["recipe"]["betas"] == [0.8, 0.9]
    monkeypatch.setattr(attempt, "train", no_training)
    assert run(overrides=overrides) == card
    assert runs.load(only_card(tmp_path / "out")[0]) is not None


@pytest.fixture
def without_overrides(monkeypatch):
    """Make the smoke tier of ListOps as small as TINY, so that an official run takes no time."""
    protocols = tasks.registry.find("listops").protocols
    monkeypatch.setitem(protocols, ("longspan", "smoke"), protocols["longspan", "smoke"].override(TINY))
    runs.count_parameters.cache_clear()
    yield
    runs.count_parameters.cache_clear()


def test_a_run_by_the_rules_is_on_the_fixed_track(run, without_overrides):
    card = run(overrides={})
    assert (card["track"], card["overrides"]) == ("fixed", {})
    assert card["parameters"]["ratio"] == 1
    assert card["parameters"]["within_rule"] is True
    assert sum(card["parameters"]["parts"].values()) == card["parameters"]["total"]


def test_more_than_a_tenth_more_parameters_is_on_the_free_track(run, without_overrides):
    baseline = runs.count_parameters("listops", "softmax", "longspan", "smoke")["total"]
    card = run("linformer", overrides={})
    assert card["parameters"]["baseline"] == baseline
    assert card["parameters"]["ratio"] == pytest.approx(card["parameters"]["total"] / baseline, abs=1e-6)
    assert card["parameters"]["ratio"] > 1.10
    assert card["parameters"]["within_rule"] is False
    assert card["track"] == "free"


def test_the_baseline_of_an_overridden_run_is_overridden_too(run):
    softmax, fnet = run(), run("fnet")
    assert fnet["parameters"]["baseline"] == softmax["parameters"]["total"]
    assert fnet["parameters"]["ratio"] < 1


# ---------------------------------------------------------------------------------------------------- identity of code


@pytest.fixture
def changed_softmax(monkeypatch):
    """Softmax with another formula and the same version."""

    def change():
        cls = attentions.get("softmax").cls
        attend = cls.attend
        monkeypatch.setattr(cls, "attend", lambda self, q, *a, **k: attend(self, 2 * q, *a, **k))
        fingerprint._cached.cache_clear()

    yield change
    monkeypatch.undo()
    fingerprint._cached.cache_clear()


def test_the_card_of_a_built_in_names_its_version_and_outputs(run):
    settings = run()["settings"]
    assert settings["mechanism_version"] == 1
    assert settings["mechanism_fingerprint"].keys() == set(Pattern)
    assert "mechanism_sha256" not in settings


def test_a_built_in_with_other_outputs_is_trained_again(run, changed_softmax, monkeypatch):
    first = run()
    changed_softmax()
    assert run()["curve"] != first["curve"]
    monkeypatch.setattr(attempt, "train", no_training)
    assert run()["curve"] != first["curve"]


def test_a_card_from_before_versions_answers_its_cell(run, tmp_path, monkeypatch):
    card = run()
    settings = {name: value for name, value in card["settings"].items() if not name.startswith("mechanism_")}
    old = card | {"settings": settings | {"mechanism_sha256": "a" * 64}, "files": {}, "files_sha256": {}}
    out = tmp_path / "before"
    Store(out / "cards").add({name: value for name, value in old.items() if name != "sha256"})
    monkeypatch.setattr(attempt, "train", no_training)
    assert run(out=out)["settings"] == old["settings"]


# ------------------------------------------------------------------------------------------------------------ plug-ins

PLUGIN = """
import torch
from longspan import AttentionMeta, HeadwiseAttention, Pattern

class Mine(HeadwiseAttention):
    meta = AttentionMeta("Mine", "none", "own", "n", tuple(Pattern))

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        {body}
        seen = torch.ones_like(v) if key_mask is None else key_mask[:, None, :, None].expand_as(v)
        return ((v * seen).sum(dim=2, keepdim=True) / seen.sum(dim=2, keepdim=True)).expand_as(q)
"""


@pytest.fixture
def plugin(tmp_path):
    """Writes a plug-in whose `attend` begins with `body`; returns its name."""

    def write(body="pass", text=PLUGIN):
        (tmp_path / "mine.py").write_text(text.format(body=body))
        return f"{tmp_path / 'mine.py'}:Mine"

    return write


def test_an_edited_plug_in_is_a_new_run(run, plugin, tmp_path, monkeypatch):
    first = run(plugin())
    assert first["mechanism"] == "mine.py:Mine"  # without the folder on this machine
    second = run(plugin("v = 0.5 * v + 0.25"))
    assert second["settings"]["mechanism_sha256"] != first["settings"]["mechanism_sha256"]
    assert second["curve"] != first["curve"]
    assert len(list(Store(tmp_path / "out" / "cards").entries())) == 2
    monkeypatch.setattr(attempt, "train", no_training)
    assert run(plugin("v = 0.5 * v + 0.25")) == second


@pytest.mark.parametrize(
    "body, reason",
    [
        ("raise RuntimeError('no luck')", "RuntimeError: no luck"),
        ("raise KeyError('lost')", "KeyError: 'lost'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt('no signal')", "KeyboardInterrupt: no signal"),
        (
            "raise MemoryError",
            "out of memory on cpu at batch size 8; choose a smaller one with --set recipe.batch_size",
        ),
        ("torch.empty(2**60)", "out of memory on cpu at batch size 8"),
        ("return v[:, :, :1]", "Mine.attend must return a tensor of shape (8, 2, "),
        ("assert False, 'cannot be'", "AssertionError: cannot be"),
        ("raise Exception('first line\\\\nsecond line')", "Exception: first line"),
        ("return v @ k", "RuntimeError: Expected size for first two dimensions of batch2 tensor"),
    ],
)
def test_a_plug_in_that_raises_leaves_a_card_that_says_why(run, plugin, tmp_path, body, reason):
    with pytest.raises(RunFailed, match=r"listops .*mine.py:Mine seed 0 failed: ") as caught:
        run(plugin(body))
    assert caught.value.exit_code == 4
    path, card = only_card(tmp_path / "out")
    assert (card["status"], card["score"], card["metrics"]) == ("fail", None, None)
    assert card["reason"].startswith(reason)
    assert "\n" not in card["reason"]
    assert verify(path)[0].status == "kept"
    assert runs.unfinished(tmp_path / "out") == []


def test_a_failed_cell_is_tried_again_once_it_is_mended(run, plugin, tmp_path):
    with pytest.raises(RunFailed):
        run(plugin("raise RuntimeError('no luck')"))
    assert run(plugin())["status"] == "ok"
    assert [card["status"] for card in Store(tmp_path / "out" / "cards").cards(superseded=True)] == ["fail", "ok"]


def test_a_plug_in_that_cannot_be_built_is_one_sentence(run, plugin, tmp_path):
    text = PLUGIN + "\n    def __init__(self, *sizes, **shell):\n        raise KeyError('width')\n"
    with pytest.raises(PluginError, match=r"mine.py:Mine could not be built \(KeyError: 'width'\); fix it"):
        run(plugin(text=text))
    assert list(Store(tmp_path / "out" / "cards").entries()) == []


def test_a_built_in_that_needs_more_memory_than_there_is_leaves_a_card(run, tmp_path, monkeypatch):
    monkeypatch.setattr(attempt, "train", lambda *_, **__: torch.empty(2**60))
    with pytest.raises(RunFailed, match="out of memory on cpu at batch size 8; choose a smaller one"):
        run()
    assert only_card(tmp_path / "out")[1]["status"] == "fail"


def test_what_is_out_of_memory_beside_others_has_no_card_and_goes_on_alone(run, tmp_path, monkeypatch):
    """Running out of memory on a device shared with others says nothing about the mechanism: a card would be wrong."""
    whole = run(out=tmp_path / "whole")
    told = attempt.train

    def cramped(*arguments, watch, **how):
        def look(now, steps):
            watch(now, steps)
            if now.step == 3:  # the steps before it are saved
                raise torch.OutOfMemoryError("CUDA out of memory")

        return told(*arguments, watch=look, **how)

    monkeypatch.setattr(attempt, "train", cramped)
    monkeypatch.setattr("longspan.training.loop.SAVE_EVERY_SECONDS", -1.0)
    with pytest.raises(Crowded, match="which others use as well; what was saved of it is kept"):
        run(shared=True)
    assert list(Store(tmp_path / "out" / "cards").entries()) == []
    monkeypatch.setattr(attempt, "train", told)
    card = run()
    assert card["timing"]["resumed"] == 1
    assert card["timing"]["shared"]
    assert card["score"] == whole["score"]


def test_an_error_of_our_own_is_not_blamed_on_a_mechanism(run, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise KeyError("ours")

    monkeypatch.setattr(attempt, "train", broken)
    with pytest.raises(KeyError, match="ours"):
        run()
    assert list(Store(tmp_path / "out" / "cards").entries()) == []


def test_a_loss_that_is_not_a_number_leaves_a_card_that_says_so(run, tmp_path):
    with pytest.raises(RunFailed, match="loss is not a number") as caught:
        run(overrides=TINY | {"recipe.learning_rate": 1e30, "recipe.steps": 20})
    assert caught.value.exit_code == 4
    _, card = only_card(tmp_path / "out")
    assert card["status"] == "fail"
    assert "lower the learning rate" in card["reason"]
    assert card["parameters"]["total"] > 0
    assert not list((tmp_path / "out" / "runs").glob("*/checkpoint-*.pt"))


# ------------------------------------------------------------------------------------------------------- wrong requests


def test_a_folder_that_cannot_be_written_is_one_sentence(run, tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(StorageError, match=r"Cannot write .*taken.*; free some space or choose a writable folder"):
        run(out=tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "a file"


def test_a_lock_that_cannot_be_had_is_one_sentence(run, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "folder_name", lambda plan, belongs: "here")
    (tmp_path / "out" / "runs" / "here" / "lock").mkdir(parents=True)
    with pytest.raises(StorageError, match="Cannot write"):
        run()


@pytest.mark.parametrize(
    "how, sentence",
    [
        ({"seed": -1}, "A seed is an integer from 0 to 9223372036854775807, got -1"),
        ({"seed": True}, "A seed is an integer from 0 to 9223372036854775807, got True"),
        ({"device": "tpu"}, "A device is auto, cpu or cuda, got 'tpu'"),
        ({"precision": "fp8"}, "A precision is auto, fp32 or bf16, got 'fp8'"),
        ({"devices": 3}, "A batch of 8 cannot be shared equally by 3 devices"),
        ({"devices": 0}, "A batch of 8 cannot be shared equally by 0 devices"),
        ({"devices": 2, "parallel": "tensor"}, "takes 'ddp' or 'fsdp' or 'context', got 'tensor'"),
        ({"devices": 2, "parallel": "context"}, "shares the tokens of a row among devices, which listops does not"),
        (
            {"task": "lm", "overrides": {}, "devices": 3, "parallel": "context", "mechanism": "s4d"},
            "S4D needs the whole",
        ),
        ({"overrides": {"recipe.steps": 0}}, "steps of at least 1, got 0"),
        ({"mechanism": "softmx"}, "Did you mean 'softmax'"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_written(run, tmp_path, how, sentence):
    with pytest.raises(UsageError, match=sentence):
        run(**how)
    assert not (tmp_path / "out").exists()


def test_a_mechanism_without_the_pattern_is_refused(run, plugin):
    text = PLUGIN.replace("tuple(Pattern)", "(Pattern.CAUSAL_SELF,)")
    with pytest.raises(
        UnsupportedPattern, match="cannot run as noncausal_self, which listops needs; it supports: causal"
    ):
        run(plugin(text=text))


def test_a_gpu_that_is_not_there_cannot_be_asked_for():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UsageError, match="torch sees no GPU here; use --device cpu"):
        choose_device("cuda")


def test_every_combination_is_a_cell_task_by_task():
    cells = list(runs.cells(["listops", "pathfinder"], ["softmax", "fnet"], seeds=2, tier="lite"))
    assert [(c.task, c.mechanism, c.seed) for c in cells[:4]] == [
        ("listops", "softmax", 0),
        ("listops", "softmax", 1),
        ("listops", "fnet", 0),
        ("listops", "fnet", 1),
    ]
    assert len(cells) == 8
    assert {c.tier for c in cells} == {"lite"}


# ---------------------------------------------------------------------------------------------------- several processes


def test_two_processes_train_as_one_does(run, plugin, tmp_path, data):
    """A plug-in with unused projections, uneven shares of the validation set: only the summation order differs."""
    overrides = SMALL | {"recipe.steps": 20, "recipe.evaluate_every": 5, "recipe.evaluation_batch": 32}
    mine = plugin()
    one = run(mine, overrides, out=tmp_path / "one")
    two = run(mine, overrides, out=tmp_path / "two", devices=2)
    assert two["settings"]["devices"] == 2
    assert len(one["curve"]) == len(two["curve"]) == 4
    for point, other in zip(one["curve"], two["curve"], strict=True):
        assert other == pytest.approx(point, rel=1e-4)
    assert two["metrics"]["test"]["loss"]["value"] == pytest.approx(one["metrics"]["test"]["loss"]["value"], rel=1e-4)
    assert [m["accuracy"]["count"] for m in two["metrics"].values()] == [65, 128]
    path, card = only_card(tmp_path / "two")
    kept = predictions(path, card)
    assert set(kept) == {"label", "prediction"}, "in the order of rows, which need no numbers"
    rules = tasks.get("listops").protocol("longspan", "smoke").override(overrides)
    splits = tasks.get("listops").splits(rules, data)
    assert np.array_equal(kept["label"], splits.test.labels)


@pytest.mark.full
def test_what_devices_share_is_on_the_card_and_no_override(run, tmp_path):
    found = run(devices=2, parallel="fsdp")
    assert (found["settings"]["recipe"]["parallel"], found["settings"]["devices"]) == ("fsdp", 2)
    assert found["overrides"] == json.loads(json.dumps(TINY))
    assert runs.load(only_card(tmp_path / "out")[0]) is not None
    assert run() == found, "the same cell, whatever number of devices ran it"


def test_the_folder_of_a_run_does_not_depend_on_the_devices(data):
    cell = Cell("listops", "softmax", overrides=TINY)
    plans = [train._planned(cell, parallel) for parallel in (None, "fsdp")]
    splits = plans[0].task.splits(plans[0].protocol, data)
    facts = [belonging(plan, splits, "cpu", "fp32") for plan in plans]
    assert facts[0] == facts[1]
    assert "devices" not in facts[0].facts


def test_weights_that_a_mechanism_ties_are_saved_and_loaded(run, tmp_path):
    run(mechanism='linformer(rank=4, sharing="key-value")')
    attention = runs.load(only_card(tmp_path / "out")[0]).blocks[0].attention
    assert attention.to_key_slots.data_ptr() == attention.to_value_slots.data_ptr()
