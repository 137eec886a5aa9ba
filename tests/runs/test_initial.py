"""Training may start from another run's weights, easy examples first: on the free track, recorded on the card."""

import json

import pytest

from longspan.core.errors import CorruptFile, UsageError
from longspan.results.card import seal
from longspan.results.files import digest
from longspan.results.store import Store
from longspan.runs import Cell, run

SMALL = {"data.train": 64, "data.valid": 20, "data.test": 50, "data.longer_than": 5, "data.shorter_than": 20}
SMALL |= {"model.dim": 8, "model.layers": 1, "model.mlp": 8, "recipe.batch_size": 8, "recipe.warmup": 1}
SMALL |= {"recipe.steps": 12, "recipe.evaluate_every": 4, "recipe.learning_rate": 0.03}
STILL = {"recipe.steps": 1, "recipe.evaluate_every": 1, "recipe.learning_rate": 1e-12}


@pytest.fixture
def start(tmp_path):
    """A function that trains, and the card and the weights of a first run."""

    def train(**changes):
        cell = Cell("listops", "softmax", overrides=SMALL | changes)
        return run(cell, out=tmp_path / "out", data=tmp_path / "data", device="cpu", progress=False)

    train()
    ((path, card),) = Store(tmp_path / "out" / "cards").entries()
    return train, path, path.with_name(card["files"]["weights"])


@pytest.mark.parametrize("which", ["card", "weights"])
def test_a_run_starts_where_the_other_ended(start, which):
    train, path, weights = start
    before = json.loads(path.read_text())
    name = str(path if which == "card" else weights)
    after = train(**STILL | {"recipe.initial_weights": name})
    assert after["metrics"]["test"]["accuracy"] == before["metrics"]["test"]["accuracy"]
    assert after["initial_sha256"] == digest(weights)
    fresh = train(**STILL)
    assert "initial_sha256" not in fresh
    assert fresh["metrics"]["test"]["loss"] != after["metrics"]["test"]["loss"]


def test_it_breaks_the_rule_against_pretraining_and_is_on_the_free_track(start):
    train, _, weights = start
    card = train(**STILL | {"recipe.initial_weights": str(weights)})
    rule = card["rules"]["no pretraining"]
    assert (card["track"], rule["kept"]) == ("free", False)
    assert digest(weights)[:12] in rule["finding"]


def test_other_weights_in_the_same_file_are_another_run(start, tmp_path):
    train, _, weights = start
    file = tmp_path / "start.safetensors"
    file.write_bytes(weights.read_bytes())
    one = train(**STILL | {"recipe.initial_weights": str(file)})
    assert train(**STILL | {"recipe.initial_weights": str(file)})["sha256"] == one["sha256"], "answered by its card"
    train(**{"recipe.steps": 4})
    (other,) = (
        path.with_name(card["files"]["weights"])
        for path, card in Store(tmp_path / "out" / "cards").entries()
        if card["overrides"] == SMALL | {"recipe.steps": 4}
    )
    file.write_bytes(other.read_bytes())
    again = train(**STILL | {"recipe.initial_weights": str(file)})
    assert again["initial_sha256"] == digest(other) != one["initial_sha256"]


def test_what_cannot_be_started_from_is_refused_with_a_sentence(start, tmp_path):
    train, path, weights = start
    with pytest.raises(UsageError, match="which is no file"):
        train(**{"recipe.initial_weights": str(tmp_path / "nowhere")})
    with pytest.raises(UsageError, match="Start from a run of the same network"):
        train(**{"recipe.initial_weights": str(weights), "model.mlp": 16})
    (tmp_path / "noise.safetensors").write_bytes(b"noise")
    with pytest.raises(CorruptFile, match="cannot be read"):
        train(**{"recipe.initial_weights": str(tmp_path / "noise.safetensors")})
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptFile, match="was changed after the run"):
        train(**{"recipe.initial_weights": str(path)})
    card = {name: value for name, value in json.loads(path.read_text()).items() if name != "sha256"}
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(seal(card | {"files": {}, "files_sha256": {}})))
    with pytest.raises(UsageError, match="has no weights beside it"):
        train(**{"recipe.initial_weights": str(bare)})
