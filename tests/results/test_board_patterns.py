"""The starter board: tasks of two patterns and two scores in one row."""

import pytest

from longspan.results import collect
from longspan.results.board import board
from longspan.results.board_table import parts
from longspan.results.card import seal
from longspan.results.render import render
from tests.results.factory import make_card

CS = {"pattern": "causal_self"}


def perplexity(mechanism, value, **fields):
    score = {"name": "perplexity", "split": "test", "value": value, "count": 7_000, "higher_is_better": False}
    score |= {"chance": 100.0, "unit": "plain"}
    return make_card(mechanism, "lm", variant="standin", score=score, **CS, **fields)


def cards_of(mechanism, listops, recall, lm):
    return [
        make_card(mechanism, accuracy=listops),
        make_card(mechanism, "recall", accuracy=recall, chance=0.25, **CS),
        perplexity(mechanism, lm),
    ]


CARDS = [*cards_of("softmax", 0.3, 1.0, 8.0), *cards_of("linear", 0.4, 0.3, 6.0), *cards_of("local", 0.2, 0.2, 120.0)]


def starter(cards=CARDS, **how):
    return board(cards, "starter", "longspan", "smoke", **how)


def test_a_row_has_a_mechanism_in_the_slots_of_every_task():
    view = starter()
    assert [row.mechanism for row in view.rows] == ["softmax", "linear", "local"]
    assert [row.rank for row in view.rows] == [1, 2, 3]
    assert view.rows[0].averages["avg"].value == pytest.approx(0.65)
    assert [row.cells["lm"].value for row in view.rows] == [8.0, 6.0, 120.0]


def test_each_column_has_its_own_direction_and_baseline():
    softmax, linear, local = starter().rows
    assert (softmax.cells["recall"].leading, softmax.cells["lm"].leading) == (True, False)
    assert (linear.cells["listops"].leading, linear.cells["lm"].leading) == (True, True)
    assert (local.cells["recall"].above_chance, local.cells["lm"].above_chance) == (False, False)


def test_a_missing_pattern_is_a_dash_and_leaves_the_row_without_a_rank():
    view = starter([*CARDS, make_card("fnet", accuracy=0.9)])
    row = view.rows[-1]
    assert (row.mechanism, row.rank, row.cells["recall"].status) == ("fnet", None, "missing")
    (line,) = (line for line in render(view, "markdown").splitlines() if "90.00" in line)
    assert line.count("–") >= 3


def test_runs_in_other_slots_do_not_count():
    view = starter([*CARDS, make_card("linear", accuracy=0.99, created="2026-01-03T03:04:05Z", **CS)])
    assert {row.mechanism: row.cells["listops"].value for row in view.rows}["linear"] == 0.4


def test_perplexities_are_plain_numbers_beside_fractions_in_percent():
    (table,) = parts(starter())
    assert table.columns[2:6] == ("ListOps", "Recall", "LM ↓", "Avg")
    assert table.sections[0].lines[0].texts[2:6] == ("30.00", "100.00 ●", "8", "65.00 ●")
    assert any("lm is scored by perplexity, lower is better." in note for note in starter().notes)


def test_stand_in_text_stands_beside_real_data_and_says_so():
    (view,) = collect.boards(CARDS, "starter")
    assert (view.data, view.pattern) == ("real", None)
    assert any(note.startswith("lm: on stand-in data") for note in view.notes)
    assert not any("stand-in" in note for note in starter(CARDS[:2]).notes)


def test_one_pattern_may_be_asked_for():
    (view,) = collect.boards(CARDS, "starter", pattern="CS")
    assert {row.cells["listops"].status for row in view.rows} == {"missing"}
    assert {row.cells["recall"].status for row in view.rows} == {"ok"}


def test_a_row_is_one_code_in_both_patterns():
    def mine(task, letter, day, **fields):
        card = make_card("mine.py:Mine", task, sealed=False, created=f"2026-01-0{day}T00:00:00Z", **fields)
        card["settings"] |= {"mechanism_sha256": letter * 64}
        return seal(card)

    (row,) = starter([mine("listops", "a", 1), mine("recall", "a", 2, **CS)]).rows
    assert (row.cells["listops"].status, row.cells["recall"].status) == ("ok", "ok")
    view = starter([mine("listops", "a", 1), mine("recall", "b", 2, **CS)])
    (row,) = view.rows
    assert (row.cells["listops"].status, row.cells["recall"].status) == ("missing", "ok")
    assert [card.task for card in view.off] == ["listops"]
