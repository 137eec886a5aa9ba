"""A card is data: building its network runs no code that it names, and allocates no more than its weights hold."""

import json
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import longspan
from longspan import runs
from longspan.cli import app
from longspan.core.errors import CorruptFile, LongspanError, UntrustedCode, UsageError
from longspan.core.registry import builtins_only
from longspan.results import card as cards
from longspan.results.files import digest
from longspan.results.store import Store
from longspan.runs import Cell

TINY = {"data.train": 64, "data.valid": 16, "data.test": 16, "data.shorter_than": 100, "recipe.batch_size": 8}
TINY |= {"model.dim": 16, "model.layers": 1, "model.mlp": 16, "recipe.steps": 2, "recipe.evaluate_every": 2}
MINE = """
from longspan.attentions import AttentionMeta, HeadwiseAttention, ALL_PATTERNS
{first}
class Mine(HeadwiseAttention):
    meta = AttentionMeta(title="Mine", paper="none", family="test", cost="n", patterns=ALL_PATTERNS)
    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        return v
"""
TRAP = "import pathlib; pathlib.Path('executed').touch()"

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The cards of two runs, of a built-in and of a plug-in, and the folder of the plug-in."""
    folder = tmp_path_factory.mktemp("trust")
    (folder / "mine.py").write_text(MINE.format(first=""))
    how = {"data": folder / "data", "device": "cpu", "progress": False}
    for name, mechanism in {"softmax": "softmax", "mine": f"{folder / 'mine.py'}:Mine"}.items():
        runs.run(Cell("listops", mechanism, overrides=TINY), out=folder / name, **how)
    found = {name: next(Store(folder / name / "cards").entries())[0] for name in ("softmax", "mine")}
    return found | {"folder": folder}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder in which the files that a card names would leave a trace if executed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("mine.py", "trap.py"):
        (tmp_path / name).write_text(MINE.format(first=TRAP))
    return tmp_path


def forged(source, folder, **fields):
    """The card of a run with changed fields, resealed, beside its files."""
    card = {**cards.read(source), **fields}
    card.pop("sha256")
    for name in card["files"].values():
        (folder / name).write_bytes((source.parent / name).read_bytes())
    return cards.write(folder / "card.json", card)


PLACES = {
    "the mechanism as a file": {"mechanism": "mine.py:Mine"},
    "the mechanism as a module": {"mechanism": "trap:Mine"},
    "the mechanism with options": {"mechanism": "./trap.py:Mine(a=1)"},
    "the mechanism by a function of Python": {"mechanism": "os:system"},
    "the task": {"task": "trap.py:Mine"},
    "the task as a module": {"task": "trap:Mine"},
    "a slot that is not replaced": {
        "task": "forecasting_etth1",
        "task_version": 2,
        "tier": "smoke",
        "pattern": "noncausal_cross",
        "overrides": {"model.self_slots": "trap.py:Mine"},
    },
}


@pytest.mark.parametrize("place", PLACES)
def test_no_code_that_a_card_names_is_run(place, made, here):
    path = forged(made["softmax"], here, **PLACES[place])
    for build in (runs.load, lambda card: longspan.ask("span", card, samples=1, device="cpu")):
        with pytest.raises(UntrustedCode, match=r"names code of its own.*trust=True"):
            build(path)
    result = CliRunner().invoke(app, ["probe", "span", str(path)])
    assert result.exit_code == 2
    assert "--trust" in result.output
    assert not (here / "executed").exists()


def test_an_installed_plug_in_is_no_built_in(made, here, monkeypatch):
    from importlib.metadata import EntryPoint

    points = [EntryPoint("theirs", "trap:Mine", "longspan.attentions")]
    monkeypatch.setattr("longspan.core.registry.entry_points", lambda group: points)
    with pytest.raises(UntrustedCode):
        runs.load(forged(made["softmax"], here, mechanism="theirs"))
    assert not (here / "executed").exists()


def test_the_caller_passes_the_file_and_it_must_be_the_code_of_the_run(made, here):
    card, own = made["mine"], f"{made['folder'] / 'mine.py'}:Mine"
    assert "Mine" in {type(module).__name__ for module in runs.load(card, attention=own).modules()}
    edited = here / "edited.py"
    edited.write_text(MINE.format(first="# another line"))
    with pytest.raises(UsageError, match="is not the code of the run"):
        runs.load(card, attention=f"{edited}:Mine")
    assert runs.load(card, attention=f"{edited}:Mine", trust=True) is not None
    with pytest.raises(UsageError, match="is not the code of the run"):
        runs.load(card, attention="softmax")


def test_trust_runs_what_the_card_names(made, here):
    assert runs.load(made["mine"], trust=True) is not None
    assert (here / "executed").exists()


def test_a_probe_card_says_which_code_was_asked(made, here):
    own = f"{made['folder'] / 'mine.py'}:Mine"
    how = {"samples": 4, "out": here, "data": made["folder"] / "data", "device": "cpu", "attention": own}
    card, _ = longspan.ask("gap", made["mine"], **how)
    assert card["settings"]["mechanism_sha256"] == cards.read(made["mine"])["settings"]["mechanism_sha256"]


def test_a_built_in_of_another_version_is_refused(made, here):
    settings = cards.read(made["softmax"])["settings"] | {"mechanism_version": 99}
    with pytest.raises(UsageError, match="softmax version 99"):
        runs.load(forged(made["softmax"], here, settings=settings))


def test_only_targets_that_were_passed_are_imported():
    from longspan import attentions

    with builtins_only("trap.py:Mine"):
        assert attentions.get("softmax") is not None
        assert attentions.get("trap.py:Mine") is not None
        with pytest.raises(UntrustedCode):
            attentions.get("mine.py:Mine")
    assert attentions.get("mine.py:Mine") is not None


# ------------------------------------------------------------------------------------------------------------- weights


def test_weights_that_were_replaced_are_not_loaded(made, here):
    path = forged(made["softmax"], here)
    weights = here / cards.read(path)["files"]["weights"]
    save_file({name: value + 1 for name, value in load_file(weights).items()}, weights)
    with pytest.raises(CorruptFile, match="was changed after the run"):
        runs.load(path)


def with_weights(made, here, content, **fields):
    """A card whose hash of the weights is that of these bytes."""
    path = forged(made["softmax"], here, **fields)
    card = cards.read(path)
    (here / card["files"]["weights"]).write_bytes(content)
    card.pop("sha256")
    card["files_sha256"]["weights"] = digest(here / card["files"]["weights"])
    return cards.write(path, card)


def header(entries: dict, content: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + content


HOSTILE = {
    "nothing": b"",
    "a pickle": b"\x80\x04cos\nsystem\n(S'touch executed'\ntR.",
    "a header of exabytes": struct.pack("<Q", 2**60) + b"{}",
    "a header that is not JSON": struct.pack("<Q", 4) + b"nope",
    "a tensor outside the file": header({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}),
    "a tensor of a quadrillion": header({"a": {"dtype": "F32", "shape": [10**15], "data_offsets": [0, 4 * 10**15]}}),
    "an overflowing shape": header({"a": {"dtype": "F32", "shape": [2**63, 2**63], "data_offsets": [0, 0]}}),
    "another network": header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4),
    "no tensors": header({}),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_weights_that_are_none_give_a_sentence(content, made, here):
    with pytest.raises(CorruptFile, match="weights"):
        runs.load(with_weights(made, here, content))
    assert not (here / "executed").exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"overrides": TINY | {"model.dim": 10**12, "model.mlp": 10**12}},
        {"overrides": TINY | {"model.dim": 2**20, "model.mlp": 2**20}},
        {"overrides": TINY | {"model.layers": 2**20}},
        {"overrides": TINY | {"model.positions": "learned", "data.length": 10**12, "data.shorter_than": 10**12}},
        {"mechanism": "performer(features=1000000000000)"},
        {"mechanism": "linformer(rank=1000000)"},
        {"overrides": TINY | {"model.layers": -1}},
        {"overrides": TINY | {"model.layers": "many"}},
        {"overrides": {"nonsense": 1}},
    ],
    ids=str,
)
def test_a_card_that_asks_for_a_larger_network_than_its_weights_is_refused_before_it_is_built(fields, made, here):
    path = forged(made["softmax"], here, **fields)
    with pytest.raises(LongspanError):
        runs.load(path)


def test_weights_that_are_not_finite_numbers_of_the_plan_are_still_the_files_own(made, here):
    """A matching hash makes the file the card's own; only its shapes decide whether it is loaded."""
    weights = load_file(made["softmax"].parent / cards.read(made["softmax"])["files"]["weights"])
    name = next(iter(weights))
    weights[name] = torch.full_like(weights[name], np.nan)
    save_file(weights, here / "nan.safetensors")
    path = with_weights(made, here, (here / "nan.safetensors").read_bytes())
    assert torch.isnan(runs.load(path).state_dict()[name]).all()
