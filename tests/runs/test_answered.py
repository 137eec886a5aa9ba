"""A cell is answered by a card whose code, settings, data and files match, and resumed from its own checkpoints."""

import hashlib
import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch

from longspan import runs
from longspan.core import environment
from longspan.core.errors import DataDamaged
from longspan.datasets import get
from longspan.datasets.imdb import Data
from longspan.results import card as cards
from longspan.results.store import Store
from longspan.runs import Cell, attempt, folder
from longspan.training import checkpoint, loop
from tests.runs.test_runs import DATA, PLUGIN, TINY, no_training, only_card

torch.set_num_threads(1)
LISTOPS = Cell("listops", "softmax", overrides=TINY)
TEXT = {"data.train": 100, "data.valid": 40, "data.test": 40, "data.length": 128}
NETWORK = {name: value for name, value in TINY.items() if name not in DATA}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def run(tmp_path, data):
    def run(cell=LISTOPS, **how):
        return runs.run(cell, **({"out": tmp_path / "out", "data": data, "device": "cpu", "progress": False} | how))

    return run


@pytest.fixture
def killed(run, monkeypatch):
    """A run that dies after three of its four steps, all of them saved."""

    def killed(cell=LISTOPS, **how):
        def watched(*args, watch, **rest):
            def dies(progress, steps):
                if progress.step == 3:
                    raise KeyboardInterrupt

            return loop.train(*args, watch=dies, save_every_seconds=-1.0, **rest)

        with monkeypatch.context() as patch:
            patch.setattr(attempt, "train", watched)
            with pytest.raises(KeyboardInterrupt):
                run(cell, **how)

    return killed


def folders(tmp_path):
    return [folder for folder in sorted((tmp_path / "out" / "runs").iterdir()) if checkpoint.newest_first(folder)]


def assert_same(one, other):
    for part in ("curve", "metrics", "score", "selected_step"):
        assert one[part] == other[part], part


# --------------------------------------------------------------------------------------------------------- checkpoints


def test_an_interrupted_run_goes_on_where_it_was(run, killed, tmp_path):
    killed()
    card = run()
    assert card["timing"]["resumed"] == 1
    assert_same(card, run(out=tmp_path / "whole"))


def test_two_precisions_live_in_two_folders_and_both_are_resumed(run, killed, tmp_path):
    killed(precision="fp32")
    killed(precision="bf16")
    assert len(folders(tmp_path)) == 2
    for precision in ("fp32", "bf16"):
        card = run(precision=precision)
        assert (card["settings"]["precision"], card["timing"]["resumed"]) == (precision, 1)


STRANGERS = {
    "another precision": {"precision": "bf16"},
    "another seed": {"cell": Cell("listops", "softmax", seed=1, overrides=TINY)},
    "another rate": {"cell": Cell("listops", "softmax", overrides=TINY | {"recipe.learning_rate": 0.5})},
    "other data": {"cell": Cell("listops", "softmax", overrides=TINY | {"data.seed": 9})},
}


@pytest.mark.parametrize("how", STRANGERS.values(), ids=STRANGERS.keys())
def test_checkpoints_of_another_run_copied_into_the_folder_are_not_resumed(run, killed, tmp_path, capsys, how):
    killed()
    (mine,) = folders(tmp_path)
    killed(**how)
    (theirs,) = (folder for folder in folders(tmp_path) if folder != mine)
    for path in checkpoint.newest_first(mine):
        path.unlink()
    for path in checkpoint.newest_first(theirs):
        path.rename(mine / path.name)
    card = run()
    assert card["timing"]["resumed"] == 0
    assert "belongs to another run (" in capsys.readouterr().err
    assert len(list((mine / "set-aside").iterdir())) == 2
    assert_same(card, run(out=tmp_path / "alone"))


def test_stand_in_data_are_not_resumed_on_imported_data(run, killed, tmp_path, data):
    cell = Cell("text", "softmax", overrides=NETWORK | TEXT)
    killed(cell)
    reviews = tmp_path / "reviews"
    for split in ("train", "test"):
        for label in ("neg", "pos"):
            (reviews / split / label).mkdir(parents=True)
            for number in range(60):
                (reviews / split / label / f"{number}_1.txt").write_text(f"{label} {number} " * 8)
    imported = tmp_path / "imported"
    get("imdb").import_from(reviews, Data(), root=imported)
    card = run(cell, data=imported)
    assert card["dataset"]["variant"] == "imported"
    assert card["timing"]["resumed"] == 0
    assert_same(card, run(cell, data=imported, out=tmp_path / "alone"))
    assert run(cell)["timing"]["resumed"] == 1, "the run on stand-ins is still there to go on"


def test_another_commit_that_trains_with_the_same_files_resumes(run, killed, tmp_path, monkeypatch):
    killed()
    now = environment.code_version()
    monkeypatch.setattr(environment, "code_version", lambda: now | {"commit": "f" * 40})
    card = run()
    assert card["timing"]["resumed"] == 1
    assert card["code"]["commit"] == "f" * 40
    assert_same(card, run(out=tmp_path / "alone"))


def test_a_change_of_the_code_that_trains_does_not_resume(run, killed, monkeypatch, capsys):
    killed()
    monkeypatch.setattr(folder, "training_source", lambda plan: "f" * 64)
    assert run()["timing"]["resumed"] == 0
    assert "longspan.training_sha256 was" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"neither", b"PK\x03\x04"])
def test_a_malformed_checkpoint_fails_no_retry(run, killed, tmp_path, content):
    killed()
    for path in checkpoint.newest_first(folders(tmp_path)[0]):
        path.write_bytes(content + hashlib.sha256(content).digest())
    assert run()["status"] == "ok"


# -------------------------------------------------------------------------------------------------------------- answers


def refused(run, monkeypatch, **how):
    with monkeypatch.context() as patch:
        patch.setattr(attempt, "train", no_training)
        with pytest.raises(AssertionError, match="trained again"):
            run(**how)


def answered(run, monkeypatch, **how):
    with monkeypatch.context() as patch:
        patch.setattr(attempt, "train", no_training)
        return run(**how)


def rewrite(path, card, **changes):
    """Change the content of the card and reseal it."""
    cards.write(path, {name: value for name, value in (card | changes).items() if name != "sha256"})


def test_reverting_to_code_that_was_run_answers_from_its_card(run, tmp_path, monkeypatch):
    def plugin(body):
        (tmp_path / "mine.py").write_text(PLUGIN.format(body=body))
        return Cell("listops", f"{tmp_path / 'mine.py'}:Mine", overrides=TINY)

    first = run(plugin("pass"))
    second = run(plugin("v = 0.5 * v + 0.25"))
    assert answered(run, monkeypatch, cell=plugin("pass")) == first
    assert answered(run, monkeypatch, cell=plugin("v = 0.5 * v + 0.25")) == second


def test_other_data_are_no_answer(run, tmp_path, monkeypatch):
    card = run()
    path, _ = only_card(tmp_path / "out")
    rewrite(path, card, dataset=card["dataset"] | {"sha256": "0" * 64})
    refused(run, monkeypatch)


def test_data_that_are_damaged_are_said_so_even_if_there_is_a_card(run, tmp_path):
    run(data=tmp_path / "own")
    (path,) = (tmp_path / "own").rglob("test.labels.npy")
    np.save(path, (np.load(path) + 1) % 10)
    with pytest.raises(DataDamaged, match=r"test\.labels\.npy has changed"):
        run(data=tmp_path / "own")


def test_a_card_from_the_future_answers_where_there_is_no_other(run, tmp_path, monkeypatch):
    """The clock of the machine that made it was wrong, which is no reason to run the cell twice."""
    card = run()
    path, _ = only_card(tmp_path / "out")
    rewrite(path, card, created=(datetime.now(UTC) + timedelta(hours=1)).isoformat())
    early = answered(run, monkeypatch)
    now = path.with_name(f"other-{path.name}")
    now.write_bytes(path.read_bytes())
    rewrite(now, card, created=datetime.now(UTC).isoformat())
    assert answered(run, monkeypatch)["created"] < early["created"]


def with_hashes(path, card):
    found = {key: hashlib.sha256(path.with_name(name).read_bytes()).hexdigest() for key, name in card["files"].items()}
    rewrite(path, card, files_sha256=found)
    return cards.read(path)


@pytest.mark.parametrize("key", ["predictions", "log", "weights"])
@pytest.mark.parametrize("gone", [True, False], ids=["gone", "altered"])
def test_a_card_whose_file_is_damaged_is_run_again_with_a_line(run, tmp_path, monkeypatch, capsys, key, gone):
    run()
    path, card = only_card(tmp_path / "out")
    card = with_hashes(path, card)
    assert answered(run, monkeypatch) == card
    file = path.with_name(card["files"][key])
    if gone:
        file.unlink()
    else:
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    capsys.readouterr()
    refused(run, monkeypatch)
    said = capsys.readouterr().err
    assert "is run again: " in said
    assert file.name in said
    if key == "weights":
        assert answered(run, monkeypatch, weights=False) == card


def test_a_card_without_weights_is_run_again_where_they_are_wanted(run, monkeypatch):
    card = run(weights=False)
    assert answered(run, monkeypatch, weights=False) == card
    refused(run, monkeypatch)


def test_an_older_sound_card_answers_where_the_newer_one_is_damaged(run, tmp_path, monkeypatch):
    first = run()
    path, _ = only_card(tmp_path / "out")
    later = {n: v for n, v in first.items() if n != "sha256"} | {"created": datetime.now(UTC).isoformat()}
    newer = Store(tmp_path / "out" / "cards").add(later, {k: path.with_name(n) for k, n in first["files"].items()})
    assert answered(run, monkeypatch)["created"] == later["created"]
    newer.with_name(json.loads(newer.read_text())["files"]["log"]).unlink()
    assert answered(run, monkeypatch) == first


def test_what_a_killed_process_left_in_the_store_is_swept_by_the_next_run(run, tmp_path):
    run()
    path, card = only_card(tmp_path / "out")
    (path.parent / ".x.json.abcd1234.part").write_text("half a card")
    (path.parent / "lost-seed0-0123456789ab.predictions.npz").write_text("of a card that never appeared")
    (path.parent / ".lost.abcd1234.adding").write_text("lost-seed0-0123456789ab.json")
    (path.parent / "notes.predictions.npz").write_text("mine")
    run()
    kept = {path.name, "notes.predictions.npz", *card["files"].values()}
    assert {file.name for file in path.parent.iterdir()} == kept
