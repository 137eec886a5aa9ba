"""What a store promises: whatever any process added is there, and damage is reported, not hidden."""

import subprocess
import sys
from pathlib import Path

import pytest

from longspan.core.errors import StorageError, UsageError
from longspan.results import card as cards
from longspan.results.collect import cards_in
from longspan.results.store import Store
from longspan.results.verify import verify
from tests.results.factory import make_card, write_predictions

ROOT = Path(__file__).parents[2]


def test_an_empty_store_has_no_cards_and_no_problems(tmp_path):
    store = Store(tmp_path / "not there yet")
    assert store.cards() == []
    assert store.problems == []


def test_files_lie_beside_the_card_and_are_named_in_it(tmp_path):
    predictions = write_predictions(tmp_path / "anything.npz", 800, 2000)
    path = Store(tmp_path / "cards").add(make_card(), files={"predictions": predictions})
    card = cards.read(path)
    assert (path.parent / card["files"]["predictions"]).read_bytes() == predictions.read_bytes()
    assert "broken" not in {finding.status for finding in verify(path)}


def test_a_rerun_supersedes_but_the_older_card_stays(tmp_path):
    store = Store(tmp_path)
    new = make_card(accuracy=0.5, created="2026-02-01T00:00:00Z")
    old = make_card(accuracy=0.4, created="2026-01-01T23:59:59.5+00:00")
    store.add(new)
    store.add(old)
    assert [card["score"]["value"] for card in store.cards()] == [0.5]
    assert [card["score"]["value"] for card in store.cards(superseded=True)] == [0.4, 0.5]


@pytest.mark.parametrize("difference", [{"seed": 1}, {"overrides": {"recipe.steps": 5}}, {"variant": "standin"}])
def test_another_cell_does_not_supersede(tmp_path, difference):
    store = Store(tmp_path)
    store.add(make_card())
    store.add(make_card(**difference))
    assert len(store.cards()) == 2


def test_adding_the_same_card_twice_changes_nothing(tmp_path):
    store = Store(tmp_path)
    assert store.add(make_card()) == store.add(make_card())
    assert len(list(tmp_path.rglob("*.json"))) == 1


def test_a_damaged_file_in_the_way_is_kept_and_named(tmp_path):
    store = Store(tmp_path)
    path = store.add(make_card())
    path.write_bytes(path.read_bytes()[:100])
    again = store.add(make_card())
    assert again != path
    assert len(store.cards()) == 1
    assert [problem.path for problem in store.problems] == [path]
    assert path.name in store.problems[0].sentence


def test_damage_never_hides_the_sound_cards(tmp_path):
    store = Store(tmp_path)
    store.add(make_card())
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "broken.json").write_text("{")
    (tmp_path / "link.json").symlink_to(tmp_path / "nothing")
    (tmp_path / "folder.json").mkdir()
    assert len(store.cards()) == 1
    assert {problem.path.name for problem in store.problems} == {"broken.json", "link.json", "folder.json"}
    assert len(store.cards()) == 1
    assert len(store.problems) == 3


def test_tables_of_benchmarks_are_passed_over(tmp_path):
    store = Store(tmp_path)
    store.add(make_card())
    for folder in ("benchmarks", "h200/benchmarks"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "speed.json").write_text('{"listops": 47.1}')
    assert len(store.cards()) == 1
    assert store.problems == []
    (tmp_path / "h200" / "speed.json").write_text('{"listops": 47.1}')
    store.cards()
    assert [problem.path.parent.name for problem in store.problems] == ["h200"]


def test_what_is_committed_are_sound_cards():
    found = cards_in([ROOT / "results"])
    assert found.cards
    assert [problem.sentence for problem in found.problems] == []


def test_find_filters_by_field(tmp_path):
    store = Store(tmp_path)
    for seed in range(3):
        store.add(make_card(seed=seed))
    store.add(make_card("linear"))
    assert len(store.find(mechanism="softmax")) == 3
    assert [card["seed"] for card in store.find(mechanism="softmax", seed=[0, 2])] == [0, 2]
    with pytest.raises(UsageError, match="Did you mean 'mechanism'"):
        store.find(mechanisms="softmax")


def test_a_mechanism_that_looks_like_a_path_stays_inside(tmp_path):
    store = Store(tmp_path / "cards")
    path = store.add(make_card("../../escape.py:Mine"))
    assert path.resolve().is_relative_to((tmp_path / "cards").resolve())
    assert store.cards()[0]["mechanism"] == "../../escape.py:Mine"


def test_a_missing_companion_is_an_error_and_leaves_no_card(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(StorageError, match="no such file"):
        store.add(make_card(), files={"predictions": tmp_path / "absent.npz"})
    assert store.cards() == []


ADDER = """
import sys
from longspan.results.store import Store
from tests.results.factory import make_card
store = Store(sys.argv[1])
for number in range(20):
    store.add(make_card(accuracy=number / 100, seed=int(sys.argv[2]) if number % 2 else 7))
"""


def test_processes_adding_at_once_lose_nothing(tmp_path):
    """Half of each process's cards are shared with the others, half are its own."""
    workers = [subprocess.Popen([sys.executable, "-c", ADDER, str(tmp_path), str(seed)], cwd=ROOT) for seed in range(3)]
    assert [worker.wait(timeout=60) for worker in workers] == [0, 0, 0]
    store = Store(tmp_path)
    found = {(card["seed"], card["score"]["value"]) for card in store.cards(superseded=True)}
    assert found == {(seed if number % 2 else 7, number / 100) for number in range(20) for seed in range(3)}
    assert store.problems == []
    assert not list(tmp_path.rglob(".*"))


def test_a_card_that_a_killed_process_had_written_is_answered_without_its_litter(tmp_path):
    store, card = Store(tmp_path), make_card()
    path = store.add(card)
    note = path.with_name(
        f".{path.name}.abcd1234.adding"
    )  # as after a kill between writing the card and finishing the add
    note.write_text(path.name)
    assert store.add(card) == path
    assert list(path.parent.iterdir()) == [path]
