"""The files beside a card are the ones it was sealed with, or an error names the one that is not."""

from longspan.results import card as cards
from longspan.results.files import digest, faults
from longspan.results.store import Store
from tests.results.factory import make_card, write_predictions


def stored(tmp_path):
    """A card in a store with predictions, weights and a log beside it."""
    (tmp_path / "log.csv").write_text("step,loss\n")
    (tmp_path / "w.safetensors").write_bytes(b"not really weights")
    files = {
        "predictions": write_predictions(tmp_path / "p.npz", 800, 2000),
        "weights": tmp_path / "w.safetensors",
        "log": tmp_path / "log.csv",
    }
    return Store(tmp_path / "cards").add(make_card(), files=files)


def test_a_stored_card_holds_the_hash_of_every_file_beside_it(tmp_path):
    path = stored(tmp_path)
    card = cards.read(path)
    assert card["files_sha256"] == {key: digest(path.parent / name) for key, name in card["files"].items()}
    assert list(faults(path, card)) == []


def test_each_changed_or_missing_file_is_a_sentence(tmp_path):
    path = stored(tmp_path)
    card = cards.read(path)
    (path.parent / card["files"]["log"]).write_text("step,loss\n1,0\n")
    (path.parent / card["files"]["weights"]).unlink()
    (path.parent / card["files"]["predictions"]).unlink()
    (path.parent / card["files"]["predictions"]).mkdir()
    found = {name: next(fault for fault in faults(path, card) if name in fault) for name in card["files"].values()}
    assert "was changed after the run" in found[card["files"]["log"]]
    assert "is missing beside the card" in found[card["files"]["weights"]]
    assert "is not a plain file" in found[card["files"]["predictions"]]


def test_weights_may_be_left_out_but_not_replaced(tmp_path):
    path = stored(tmp_path)
    card = cards.read(path)
    weights = path.parent / card["files"]["weights"]
    weights.write_bytes(b"other weights")
    assert any("was changed" in fault for fault in faults(path, card, bulky=False))
    weights.unlink()
    assert list(faults(path, card, bulky=False)) == []
    assert list(faults(path, card)) != []


def test_a_card_without_hashes_has_only_names_to_check(tmp_path):
    write_predictions(tmp_path / "p.npz", 800, 2000)
    card = make_card(files={"predictions": "p.npz"})
    assert list(faults(tmp_path / "card.json", card)) == []


def test_the_name_of_a_card_does_not_depend_on_its_files(tmp_path):
    assert stored(tmp_path).name == cards.filename(make_card())
