"""A checkpoint is resumed only if all of it fits; otherwise it is set aside unused, and training goes on."""

import copy
import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.training import checkpoint
from longspan.training.belongs import Belongs
from tests.training.small import train_small

MINE = Belongs({"run": {"seed": 0, "settings": {"recipe": {"rate": 0.1}}}, "precision": "fp32", "dirty": True})


class Killed(Exception):
    """Stands for the end of the process."""


def kill(folder, step=8, **rest):
    def watch(progress, steps):
        if progress.step == step:
            raise Killed

    with pytest.raises(Killed):
        train_small(folder, watch=watch, save_every_seconds=-1.0, **rest)


def begun(folder, **rest):
    """The outcome, and the step at which training started."""
    steps = []
    trained = train_small(folder, watch=lambda progress, _: steps.append(progress.step), **rest)
    return trained, steps[0]


def rewrite(path, change):
    """The same checkpoint with a changed state and a valid hash."""
    state = checkpoint.load(path)
    state = change(state) or state
    return checkpoint.save(path.parent, checkpoint.step_of(path), state)


def put(*places, value):
    def change(state):
        *way, last = places
        inner = state
        for place in way:
            inner = inner[place]
        inner[last] = value

    return change


def drop(*places):
    def change(state):
        *way, last = places
        inner = state
        for place in way:
            inner = inner[place]
        del inner[last]

    return change


MALFORMED = {
    "no part": lambda state: {"nothing": 1},
    "a list": lambda state: [1, 2],
    "no progress": drop("progress"),
    "progress is no dict": put("progress", value=3),
    "a field is missing": drop("progress", "valid_count"),
    "a field too many": put("progress", "extra", value=1),
    "a step that is no number": put("progress", "step", value="eight"),
    "a step beyond the recipe": put("progress", "step", value=10**9),
    "a negative step": put("progress", "step", value=-1),
    "a boolean step": put("progress", "step", value=True),
    "another step than the name": put("progress", "step", value=7),
    "seconds that are not finite": put("progress", "train_seconds", value=float("nan")),
    "a curve that is no list": put("progress", "curve", value={"step": 5}),
    "a curve without its point": put("progress", "curve", value=[]),
    "a curve with text": put("progress", "curve", 0, "valid_accuracy", value="good"),
    "a curve with infinity": put("progress", "curve", 0, "valid_accuracy", value=float("inf")),
    "a curve of other steps": put("progress", "curve", 0, "step", value=4),
    "a selected step not on the curve": put("progress", "best_step", value=3),
    "a selected score not on the curve": put("progress", "best_score", value=2.0),
    "sums that are no numbers": put("progress", "train_sums", value={"loss": "much"}),
    "a model that is no dict": put("model", value=[1]),
    "a weight that is no tensor": lambda state: put("model", next(iter(state["model"])), value=1.0)(state),
    "a weight of another shape": lambda state: put("model", next(iter(state["model"])), value=torch.zeros(3))(state),
    "a weight of another dtype": lambda state: put(
        "model", next(iter(state["model"])), value=next(iter(state["model"].values())).double()
    )(state),
    "a weight that is missing": lambda state: drop("model", next(reversed(state["model"])))(state),
    "selected weights that are missing": put("best", value={}),
    "selected weights of another shape": lambda state: put("best", next(iter(state["best"])), value=torch.zeros(3))(
        state
    ),
    "an optimiser that is none": put("optimizer", value=None),
    "groups that are missing": put("optimizer", "param_groups", value=[]),
    "another weight decay": put("optimizer", "param_groups", 0, "weight_decay", value=7.0),
    "other parameters": put("optimizer", "param_groups", 0, "params", value=[torch.zeros(2)]),
    "moments of another shape": put("optimizer", "state", 0, "exp_avg", value=torch.zeros(1)),
    "moments that are missing": drop("optimizer", "state", 0, "exp_avg_sq"),
    "moments of nobody": lambda state: put("optimizer", "state", 999, value=state["optimizer"]["state"][0])(state),
    "a second selected step that nobody asked for": put("progress", "also_step", value=5),
    "second weights that nobody asked for": lambda state: put("also", value=state["best"])(state),
    "a sum of weights that nobody asked for": put("sum", value={"weight": torch.zeros(1)}),
    "averages that are missing": put("average", value=[]),
    "averages that are no list": put("average", value=None),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train_small(tmp_path_factory.mktemp("whole"), average=0.9)


@pytest.mark.parametrize("harm", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_checkpoint_with_a_right_hash_is_set_aside_and_costs_one_step(whole, tmp_path, capsys, harm):
    kill(tmp_path, average=0.9)
    newest = checkpoint.newest_first(tmp_path)[0]
    rewrite(newest, harm)
    trained, first = begun(tmp_path, average=0.9)
    assert first == 7
    assert [path.name for path in (tmp_path / "set-aside").iterdir()] == [newest.name]
    assert f"The checkpoint {newest.name} " in capsys.readouterr().err
    assert trained.progress.curve == whole.progress.curve
    assert trained.test.metrics == whole.test.metrics


@pytest.mark.parametrize("content", [b"", b"not a torch file", b"PK\x03\x04 half a zip"])
def test_what_is_no_torch_file_but_has_the_right_hash_is_set_aside(whole, tmp_path, content):
    kill(tmp_path, average=0.9)
    for path in checkpoint.newest_first(tmp_path):
        path.write_bytes(content + hashlib.sha256(content).digest())
    trained, first = begun(tmp_path, average=0.9)
    assert first == 0
    assert len(list((tmp_path / "set-aside").iterdir())) == 2
    assert trained.progress.curve == whole.progress.curve


def test_nothing_of_a_checkpoint_is_used_if_one_part_does_not_fit(tmp_path):
    """The weights fit and lie far off, the optimiser does not fit: a half-loaded state would show in the curve."""
    whole = train_small(tmp_path / "whole")

    def harm(state):
        state["model"] = {name: value + 100 for name, value in state["model"].items()}
        state["optimizer"]["param_groups"] = []

    kill(tmp_path / "cut")
    for path in checkpoint.newest_first(tmp_path / "cut"):
        rewrite(path, harm)
    trained, first = begun(tmp_path / "cut")
    assert first == 0
    assert trained.progress.curve == whole.progress.curve


# ------------------------------------------------------------------------------------------------------------ belonging


def test_a_checkpoint_of_the_same_run_is_resumed(tmp_path):
    kill(tmp_path, belongs=MINE)
    assert begun(tmp_path, belongs=Belongs(copy.deepcopy(dict(MINE.facts))))[1] == 8
    assert not (tmp_path / "set-aside").exists()


@pytest.mark.parametrize(
    "change, words",
    [
        ({"precision": "bf16"}, "precision was fp32, is bf16"),
        ({"run": {"seed": 1, "settings": {"recipe": {"rate": 0.1}}}}, "run.seed was 0, is 1"),
        ({"run": {"seed": 0, "settings": {"recipe": {"rate": 0.2}}}}, "run.settings.recipe.rate was 0.1, is 0.2"),
        ({"dirty": False}, "dirty was True, is False"),
        ({"dirty": 1}, "dirty was True, is 1"),
        ({"torch": "2.0"}, "torch was not given, is 2.0"),
        ({"code": {"mechanism_sha256": "a"}}, "the code of the mechanism has changed"),
    ],
)
def test_a_checkpoint_of_another_run_is_set_aside_with_what_differs(tmp_path, capsys, change, words):
    kill(tmp_path, belongs=MINE)
    other = Belongs({**MINE.facts, **change})
    assert begun(tmp_path, belongs=other)[1] == 0
    said = capsys.readouterr().err
    assert f"belongs to another run ({words})" in said
    assert len(list((tmp_path / "set-aside").iterdir())) == 2


def test_an_older_checkpoint_that_belongs_is_preferred_to_a_newer_one_that_does_not(tmp_path):
    kill(tmp_path / "mine", step=4, belongs=MINE)
    kill(tmp_path / "theirs", step=8, belongs=Belongs({"precision": "bf16"}))
    stranger = checkpoint.newest_first(tmp_path / "theirs")[0]
    stranger.rename(tmp_path / "mine" / stranger.name)
    assert begun(tmp_path / "mine", belongs=MINE)[1] == 4


def test_two_files_of_one_name_are_both_kept_aside(tmp_path):
    for content in (b"one", b"two"):
        path = tmp_path / "checkpoint-000000001.pt"
        path.write_bytes(content)
        checkpoint.set_aside(path, "A sentence.")
    assert sorted(p.read_bytes() for p in (tmp_path / "set-aside").iterdir()) == [b"one", b"two"]


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
facts = st.recursive(plain, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3))


@given(facts)
@settings(max_examples=200, deadline=None)
def test_whatever_a_checkpoint_says_of_itself_is_compared_without_a_crash(saved):
    assert all(isinstance(words, str) for words in MINE.differences(saved))
    assert list(MINE.differences(saved)), "no invented facts are those of this run"
    assert list(Belongs({"x": saved}).differences({"x": copy.deepcopy(saved)})) == []


def test_tensors_and_deep_nesting_among_the_facts_are_differences():
    deep: dict = {}
    for _ in range(5_000):
        deep = {"deeper": deep}
    for odd in (torch.zeros(3), [torch.zeros(3)], deep):
        assert list(MINE.differences({**MINE.facts, "precision": odd}))
    assert list(Belongs({"code": {}}).differences({"code": {"mechanism_fingerprint": [torch.zeros(2)]}}))


def test_a_copy_under_another_name_never_counts_as_the_newest(tmp_path):
    kill(tmp_path)
    newest = checkpoint.newest_first(tmp_path)[0]
    for name in ("checkpoint-newest.pt", "checkpoint-.pt", "checkpoint-99.pt"):
        (tmp_path / name).write_bytes(newest.read_bytes())
    assert begun(tmp_path)[1] == 8
