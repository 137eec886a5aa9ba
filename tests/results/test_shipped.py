"""What the package ships: cards and checks, valid, small, and each counted once beside those of a folder."""

import json
import lzma
from datetime import UTC, datetime
from pathlib import Path

import pytest

from longspan.analysis import gather
from longspan.results import card as cards_module
from longspan.results import collect, conformance
from longspan.results.shipped import CARDS, CHECKS, other_runs, pack, shipped_cards, shipped_checks
from longspan.results.store import Store
from tests.results.factory import make_card, make_core


@pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.full)])
def test_every_shipped_card_is_sound_and_sealed(every):
    for card in shipped_cards()[::every]:
        cards_module.validate(card)
        assert cards_module.seal({key: value for key, value in card.items() if key != "sha256"}) == card


def test_they_are_small_and_say_something_of_both_speed_and_score():
    assert CARDS.stat().st_size + CHECKS.stat().st_size < 2**20
    kinds = [card["kind"] for card in shipped_cards()]
    assert min(kinds.count("measurement"), kinds.count("run")) > 20


def test_packing_is_reproducible_and_loses_nothing(tmp_path):
    store = Store(tmp_path / "results" / "machine" / "cards")
    added = [cards_module.read(store.add(card)) for card in (make_card("linear"), make_core("linear", {4096: 1.0}))]
    (tmp_path / "results" / "machine" / "conformance.json").write_text(json.dumps(shipped_checks()[:2]))
    for name in ("one", "other"):
        pack(tmp_path / "results", tmp_path / name)
    for file, content in ((CARDS, added), (CHECKS, shipped_checks()[:2])):
        one, other = ((tmp_path / name / file.name).read_bytes() for name in ("one", "other"))
        assert one == other
        packed = json.loads(lzma.decompress(one))
        assert sorted(map(json.dumps, packed)) == sorted(json.dumps(entry, sort_keys=True) for entry in content)


def test_what_is_shipped_is_what_is_committed(tmp_path):
    results = Path(__file__).parents[2] / "results"
    committed, problems = conformance.load(sorted(results.iterdir()))
    assert not problems
    assert list(shipped_checks()) == committed
    folders = sorted(results.glob("*/cards"))
    assert {card["sha256"] for card in shipped_cards()} == set(gather(folders).folders)
    assert other_runs(collect.cards_in(folders).cards) == []


def test_an_own_run_takes_the_place_of_the_shipped_one_of_its_cell():
    shipped = other_runs(())
    again = cards_module.seal({**shipped[0], "created": datetime.now(UTC).isoformat(), "sha256": None})
    assert len(other_runs([again])) == len(shipped) - 1


def test_where_nothing_was_checked_the_shipped_checks_count_and_own_ones_come_first(tmp_path):
    found, _ = collect.checks_in(None, tmp_path)
    assert {report["mechanism"] for report in found} >= {"softmax", "linear"}
    own = {**found[0], "promises": [{"promise": "shape", "status": "kept", "detail": "of our own"}]}
    (tmp_path / "conformance").mkdir()
    (tmp_path / "conformance" / "conformance-own.json").write_text(json.dumps(own))
    again, _ = collect.checks_in(None, tmp_path)
    assert len(again) == len(found)
    assert again[0] == own


def test_a_card_that_is_shipped_and_in_a_folder_counts_once(tmp_path):
    store = Store(tmp_path / "cards")
    path = store.add(make_core("linear", {4096: 1.0}))
    twin = cards_module.read(path)
    evidence = gather([Path(store.folder)], others=[twin])
    assert len(evidence.measurements) == 1
    assert not evidence.earlier
