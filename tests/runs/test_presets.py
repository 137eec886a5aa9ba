"""What a protocol runs for a mechanism's name is what the card names and what later lookups find."""

import json

import pytest
import torch

from longspan import runs
from longspan.results import card as cards
from longspan.results.alike import row_mechanism
from longspan.runs import Cell
from longspan.runs.failed import _begun
from longspan.runs.folder import BEGUN

FEW = {"data.train": 8, "data.valid": 4, "data.test": 4, "recipe.steps": 2, "recipe.batch_size": 2}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    cell = Cell("pathfinder", "local", None, "lra-released", "full", 0, FEW | {"model.layers": 1})
    return cell, out, runs.run(cell, out=out, data=out / "data", device="cpu", progress=False)


def test_the_card_names_the_form_that_ran(finished):
    _, _, card = finished
    assert (card["mechanism"], card["title"]) == ("lra_local(block=64)", "Local (LRA)")
    assert card["fidelity"]
    assert card["preset"]
    assert row_mechanism(card) == "lra_local"
    assert card["settings"]["model"]["dim"] == 64  # Local's own size; the Transformer has 32
    assert card["slots"] == {"blocks.0.attention": "LRALocal (noncausal_self)"}
    assert card["parameters"]["ratio"] == 1.0  # relative to softmax in a network of the same size


def test_either_name_is_answered_from_that_card(finished):
    cell, out, card = finished
    for mechanism in ("local", "lra_local(block=64)"):
        again = Cell(cell.task, mechanism, None, cell.protocol, cell.tier, 0, cell.overrides)
        assert runs.run(again, out=out, data=out / "data", device="cpu", progress=False)["sha256"] == card["sha256"]


def test_the_card_leads_back_to_the_network(finished):
    _, out, _ = finished
    (path,) = (out / "cards").rglob("*.json")
    model = runs.load(path)
    assert type(model.blocks[0].attention).__name__ == "LRALocal"
    with torch.no_grad():
        assert model(torch.randint(0, 256, (1, 1_024))).isfinite().all()


def test_what_a_dead_process_wrote_is_known_by_the_form(finished, tmp_path):
    cell, _, card = finished
    begun = {name: value for name, value in card.items() if name not in ("sha256", "files", "files_sha256")}
    (tmp_path / BEGUN).write_text(json.dumps(begun))
    assert _begun(tmp_path, cell) is not None
    other = Cell(cell.task, "linear", None, cell.protocol, cell.tier, 0, cell.overrides)
    assert _begun(tmp_path, other) is None


def test_a_card_of_other_protocols_has_no_such_mark(finished):
    plan = runs.RunPlan.of(Cell("pathfinder", "local", None, "longspan", "full"))
    assert not plan.preset
    assert not runs.RunPlan.of(Cell("pathfinder", "lra_local", None, "lra-released", "full")).preset
    cards.validate(finished[2])
