"""Which cards count as made by the same code."""

from collections import defaultdict
from pathlib import Path

import pytest

from longspan.results import card as cards
from longspan.results.board import board
from longspan.results.catalogue import SHIPPED, read
from longspan.results.code_identity import code_of, same_code, same_outputs
from longspan.results.store import Store, newest
from longspan.results.variant import data_of
from longspan.results.verify import verify
from tests.results.factory import make_card

ROOT = Path(__file__).parents[2]
HASH, OTHER_HASH = "a" * 64, "b" * 64
PRINT = {"noncausal_self": {"output": [0.5, 0.1, -0.2, 0.3], "gradient": [2.0, 1.0, 0.0, -1.0]}}


def nudged(by):
    return {"noncausal_self": PRINT["noncausal_self"] | {"output": [0.5, 0.1 + by, -0.2, 0.3]}}


def builtin(version=1, **fields):
    return {"mechanism_version": version} | fields


@pytest.mark.parametrize(
    "recorded, current, same",
    [
        (builtin(mechanism_fingerprint=PRINT), builtin(mechanism_fingerprint=PRINT), True),
        (builtin(mechanism_fingerprint=PRINT), builtin(2, mechanism_fingerprint=PRINT), False),
        (builtin(mechanism_fingerprint=PRINT), builtin(mechanism_fingerprint=nudged(1e-5)), True),
        (builtin(mechanism_fingerprint=PRINT), builtin(mechanism_fingerprint=nudged(1e-3)), False),
        (builtin(mechanism_fingerprint=PRINT), builtin(), True),  # no fingerprint can be computed here
        ({"mechanism_sha256": HASH}, builtin(mechanism_fingerprint=PRINT), True),  # an old card counts as version 1
        ({"mechanism_sha256": HASH}, builtin(2, mechanism_fingerprint=PRINT), False),
        ({"mechanism_sha256": HASH}, {"mechanism_sha256": HASH}, True),  # plug-ins
        ({"mechanism_sha256": HASH}, {"mechanism_sha256": OTHER_HASH}, False),
        (builtin(), {"mechanism_sha256": HASH}, False),
    ],
)
def test_a_built_in_is_its_version_and_outputs_and_a_plug_in_its_source(recorded, current, same):
    assert same_code(recorded, current) is same


def test_a_newly_declared_pattern_leaves_the_others_comparable():
    assert same_outputs(PRINT, PRINT | {"causal_self": {"output": [1.0], "gradient": [1.0]}})
    assert not same_outputs(PRINT, {"noncausal_self": {"output": PRINT["noncausal_self"]["output"]}})


def with_code(mechanism, code, **fields):
    card = make_card(mechanism, sealed=False, **fields)
    return cards.seal(card | {"settings": card["settings"] | code})


def test_a_card_may_carry_a_version_and_a_fingerprint(tmp_path):
    card = with_code("softmax", builtin(mechanism_fingerprint=PRINT))
    assert cards.read(cards.write(tmp_path / "card.json", card)) == card
    with pytest.raises(cards.InvalidCard, match="mechanism_version"):
        cards.validate(with_code("softmax", builtin(0)))


def test_old_cards_of_a_built_in_are_one_code_and_plug_ins_are_told_apart_by_source():
    one, other = {"mechanism_sha256": HASH}, {"mechanism_sha256": OTHER_HASH}
    assert same_code(
        code_of(with_code("performer(features=8)", one)), code_of(with_code("performer(features=8)", other))
    )
    assert not same_code(code_of(with_code("a.py:A(b=2)", one)), code_of(with_code("a.py:A(b=2)", other)))


@pytest.mark.parametrize(
    "mechanism, before, now, reason",
    [
        (
            "linear",
            {"mechanism_sha256": HASH},
            builtin(2),
            "version 1 of the mechanism, the board shows version 2",
        ),
        (
            "a.py:A",
            {"mechanism_sha256": HASH},
            {"mechanism_sha256": OTHER_HASH},
            "other code of a.py:A (source aaaaaaaaaaaa, the board shows bbbbbbbbbbbb)",
        ),
    ],
)
def test_a_row_of_a_board_is_of_one_code(mechanism, before, now, reason):
    old = with_code(mechanism, before, seed=0, created="2026-01-02T03:04:05Z")
    new = with_code(mechanism, now, seed=1, created="2026-01-03T03:04:05Z")
    view = board([old, new], "lra-generated", "longspan", "smoke")
    assert [row.cells["listops"].seeds for row in view.rows] == [1]
    assert [(one.seed, one.reason.startswith(reason)) for one in view.off] == [(0, True)]
    same = board([old, with_code(mechanism, before, seed=1)], "lra-generated", "longspan", "smoke")
    assert [row.cells["listops"].seeds for row in same.rows] == [2]
    assert same.off == ()


def test_committed_cards_hold_what_they_say_and_stay_on_their_boards():
    store = Store(ROOT / "results")
    found = {path: card for path, card in store.entries() if card["kind"] == "run"}
    boards, versions = defaultdict(list), {one["name"]: one["version"] for one in read(SHIPPED)["attentions"]}
    for path, card in found.items():
        assert all(check.status != "broken" for check in verify(path)), path
        today = versions[card["mechanism"].partition("(")[0]]
        assert any(same_code(card["settings"], builtin(version)) for version in range(1, today + 1)), path
        boards[card["task"], card["protocol"], card["tier"], data_of(card)].append(card)
    for (task, protocol, tier, data), own in boards.items():
        view = board(own, [task], protocol, tier, data=data)
        expected = ("settings were overridden", "version 1 of the task, the board shows version 2")
        expected += ("version 1 of the mechanism, the board shows version 2",)
        assert all(one.reason.startswith(expected) for one in view.off)
        assert sum(row.cells[task].seeds for row in (*view.rows, *view.free)) + len(view.off) == len(newest(own))
