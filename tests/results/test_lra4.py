"""The suite lra4 has an average where lra waits for Retrieval and Path-X, beside published results on its tasks."""

import pytest

from longspan.core.errors import UsageError
from longspan.results.board import board
from longspan.results.collect import boards
from longspan.results.render import render
from tests.results.factory import make_card

FOUR = {"listops": 0.36, "text_1k": 0.64, "image": 0.40, "pathfinder": 0.70}


def cards(scores=FOUR, **fields):
    return [make_card(task=task, accuracy=value, tier="full", **fields) for task, value in scores.items()]


def test_it_averages_four_tasks_with_text_at_1000_bytes():
    (view,) = boards(cards(), "lra4")
    (row,) = view.rows
    assert row.cells["text"].value == 0.64
    assert row.averages["avg4"].value == pytest.approx(0.525)
    assert row.steps_per_second == pytest.approx(10.0), "all four compare"
    assert any("text_1k" in note for note in view.notes)
    assert board(cards(), "lra", "longspan", "full").rows[0].averages["avg5"].value is None


def test_text_at_another_length_is_off_the_board_and_no_part_of_the_average():
    scores = {task: value for task, value in FOUR.items() if task != "text_1k"} | {"text": 0.65}
    view = board(cards(scores), "lra4", "longspan", "full")
    assert view.rows[0].averages["avg4"].missing == ("text_1k",)
    assert [(one.task, one.reason) for one in view.off] == [("text", "the column shows text_1k")]


def test_under_strong_text_is_the_task_itself():
    scores = {task: value for task, value in FOUR.items() if task != "text_1k"} | {"text": 0.86}
    view = board(cards(scores, protocol="strong", track="free"), "lra4", "strong", "full")
    assert view.free[0].averages["avg4"].value == pytest.approx((0.36 + 0.86 + 0.40 + 0.70) / 4)


def test_published_averages_are_over_the_same_four_and_none_is_called_wrong():
    (view,) = boards(cards(), "lra4")
    chance = next(row for row in view.published if row.title == "Chance")
    assert chance.averages["avg4"] == pytest.approx(0.30)
    assert (chance.printed_average, chance.average_is_wrong) == (None, False)
    assert view.paper.flags == ()
    assert "printed" not in render(view, "markdown").split("Published:")[1].split("\n\n")[0]


def test_a_table_of_another_suite_is_refused_as_before():
    with pytest.raises(UsageError, match="belongs to suite lra"):
        board(cards(), "starter", "longspan", "full", published="lra-v1")
