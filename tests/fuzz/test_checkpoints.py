"""Checkpoints that are damaged, malformed or hostile: a run resumes correctly or starts earlier, and ends the same."""

import copy
import hashlib
import io
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from longspan.training import checkpoint
from longspan.training.loop import Trained
from tests.fuzz.figures import inputs
from tests.fuzz.mutation import damaged
from tests.training.small import train_small

SETTINGS: dict[str, Any] = {"steps": 4, "evaluate_every": 2, "warmup": 1, "save_every_seconds": -1}
ODD = [None, True, -1, 10**30, 0.5, float("nan"), "text", b"bytes", [], {}, [[]], {"a": 1}, torch.zeros(3)]
ODD += [torch.zeros(0), torch.zeros(2, dtype=torch.int64), torch.tensor(float("inf"))]
NAMES = ["checkpoint-000000002.pt", "checkpoint-x.pt", f"checkpoint-{'9' * 30}.pt", "checkpoint--00000001.pt"]
NAMES += ["checkpoint-¹.pt", "checkpoint-.pt"]


class Stop(Exception):
    """The run is killed here."""


class Trap:
    """A pickle that runs code when it is read."""

    def __reduce__(self):
        return open, (str(self.path), "w")

    def __init__(self, path: Path):
        self.path = path


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, bytes]:
    """The checkpoints of a run that was killed in its third step, by name."""
    folder = tmp_path_factory.mktemp("killed")

    def kill(progress, steps):
        if progress.step == 3:
            raise Stop

    with pytest.raises(Stop):
        train_small(folder, watch=kill, **SETTINGS)
    return {path.name: path.read_bytes() for path in sorted(folder.glob("checkpoint-*.pt"))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> str:
    return outcome(train_small(tmp_path_factory.mktemp("whole"), **SETTINGS))


def outcome(trained: Trained) -> str:
    """Everything a run produces, except times."""
    curve = [{name: value for name, value in point.items() if "second" not in name} for point in trained.progress.curve]
    return repr((curve, trained.progress.step, trained.progress.best_step, trained.valid, trained.test))


def saved(state: Any, dice: random.Random) -> bytes:
    """A file with this content and a matching hash."""
    buffer = io.BytesIO()
    if dice.random() < 0.5:
        torch.save(state, buffer)
    else:
        pickle.dump(state, buffer)
    return sealed(buffer.getvalue())


def sealed(payload: bytes) -> bytes:
    return payload + hashlib.sha256(payload).digest()


def malformed(state: Any, dice: random.Random) -> Any:
    """The state with one part removed, added, or of another kind."""
    state = copy.deepcopy(state)
    parent: Any = None
    key, value = None, state
    while isinstance(value, dict | list) and value and (parent is None or dice.random() < 0.8):
        parent, key = value, dice.choice(list(value) if isinstance(value, dict) else range(len(value)))
        value = parent[key]
    kind = dice.choice(["remove", "replace", "replace", "add"])
    if parent is None or (kind == "replace" and dice.random() < 0.05):
        return dice.choice(ODD)
    if kind == "remove" and isinstance(parent, dict) and isinstance(key, int):
        kind = "add"  # a parameter without moments may never have had a gradient
    if kind == "remove":
        del parent[key]
    elif kind == "add" and isinstance(parent, dict):
        parent[dice.choice(["more", 99, ("a",)])] = dice.choice(ODD)
    else:
        parent[key] = dice.choice([odd for odd in ODD if not _same_kind(odd, value)])
    return state


def _same_kind(odd: Any, value: Any) -> bool:
    """Whether the two differ in content only, which only a hash can detect."""
    if isinstance(odd, torch.Tensor) and isinstance(value, torch.Tensor):
        return odd.shape == value.shape and odd.dtype == value.dtype
    return type(odd) is type(value)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@inputs(quick=12, full=500)  # each is a whole run
def test_a_run_among_bad_checkpoints_ends_as_if_there_were_none(count, figures, tmp_path, files, whole, capsys):
    dice = random.Random(18)
    states = {name: torch.load(io.BytesIO(content[:-32]), weights_only=True) for name, content in files.items()}
    resumed = 0
    for number in range(count):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, content in files.items():
            kind = dice.choice(["sound", "damaged", "sealed", "malformed", "trap", "malformed", "absent", "other name"])
            if kind == "sound":
                (folder / name).write_bytes(content)
            elif kind == "damaged":
                (folder / name).write_bytes(damaged(content, dice))
            elif kind == "sealed":
                cut = damaged(content[: dice.randrange(len(content) - 32)], dice)
                (folder / name).write_bytes(sealed(cut))
            elif kind == "malformed":
                (folder / name).write_bytes(saved(malformed(states[name], dice), dice))
            elif kind == "trap":
                (folder / name).write_bytes(saved({**states[name], "progress": Trap(tmp_path / "escaped")}, dice))
            elif kind == "other name":
                (folder / dice.choice(NAMES)).write_bytes(content)
        with figures.trying(accepted="ended the same"):
            trained = train_small(folder, **SETTINGS)
            assert outcome(trained) == whole, [(path.name, path.stat().st_size) for path in folder.iterdir()]
        resumed += trained.progress.resumed
        figures.add("escapes", (tmp_path / "escaped").exists())
        assert not (tmp_path / "escaped").exists()
        capsys.readouterr()
    figures.add("resumed", resumed)
    assert figures["refused with a sentence"] == 0
    assert resumed > 0


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@inputs(quick=150)
def test_the_bytes_of_a_checkpoint_are_a_state_or_a_sentence(count, figures, tmp_path, files):
    figures.title = "bytes of checkpoints"
    dice, path = random.Random(18), tmp_path / "checkpoint-000000003.pt"
    content = files["checkpoint-000000002.pt"][:-32]
    for _ in range(count):
        kind = dice.choice(["sound", "damaged", "sealed", "trap"])
        changed = saved(Trap(tmp_path / "escaped"), dice) if kind == "trap" else sealed(content)
        if kind in ("damaged", "sealed"):
            changed = damaged(content, dice)
            changed = sealed(changed) if kind == "sealed" else changed
        path.write_bytes(changed)
        with figures.trying():
            checkpoint.load(path)
        figures.add("escapes", (tmp_path / "escaped").exists())
        assert not (tmp_path / "escaped").exists()
    assert figures["accepted"] > 0
