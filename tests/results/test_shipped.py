"""The cards inside the package: sound, sealed, small, and each counted once beside those of a folder."""

from pathlib import Path

import pytest

from longspan.analysis import gather
from longspan.results import card as cards_module
from longspan.results.shipped import PACK, pack, shipped_cards
from longspan.results.store import Store
from tests.results.factory import make_card, make_core


@pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.full)])
def test_every_shipped_card_is_sound_and_sealed(every):
    for card in shipped_cards()[::every]:
        cards_module.validate(card)
        assert cards_module.seal({key: value for key, value in card.items() if key != "sha256"}) == card


def test_they_are_small_and_say_something_of_both_speed_and_score():
    assert PACK.stat().st_size < 2**20
    kinds = [card["kind"] for card in shipped_cards()]
    assert min(kinds.count("measurement"), kinds.count("run")) > 20


def test_packing_is_reproducible_and_loses_nothing(tmp_path):
    store = Store(tmp_path / "cards")
    for card in (make_card("linear"), make_core("linear", {4096: 1.0})):
        store.add(card)
    one, other = (pack([store.folder], tmp_path / name).read_bytes() for name in ("one.xz", "other.xz"))
    assert one == other


def test_a_card_that_is_shipped_and_in_a_folder_counts_once(tmp_path):
    store = Store(tmp_path / "cards")
    path = store.add(make_core("linear", {4096: 1.0}))
    twin = cards_module.read(path)
    evidence = gather([Path(store.folder)], others=[twin])
    assert len(evidence.measurements) == 1
    assert not evidence.earlier
