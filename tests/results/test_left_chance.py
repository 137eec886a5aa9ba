"""How many seeds rose above chance: stated where some of several did not, from the cards of the seeds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.results.board import board
from longspan.results.chance import is_above_chance
from longspan.results.render import render
from tests.results.factory import make_card


def pathfinder(*accuracies, **fields):
    how = {"chance": 0.5, "count": 20_000, "tier": "full"} | fields
    cards = [make_card(task="pathfinder", seed=seed, accuracy=value, **how) for seed, value in enumerate(accuracies)]
    return board(cards, ["pathfinder"], "longspan", "full")


def test_the_board_says_how_many_seeds_left_chance_and_what_they_reach():
    view = pathfinder(0.5031, 0.70, 0.74)
    cell = view.rows[0].cells["pathfinder"]
    assert (cell.left_chance, cell.seeds) == (2, 3)
    assert cell.left_mean == pytest.approx(0.72)
    for form in ("markdown", "html", "latex"):
        assert "(2 of 3 left chance: 72.00)" in render(view, form)
    assert "2 of 3 left" in " ".join(render(view, "terminal", width=160).split())
    assert "each by itself" in render(view, "markdown")


def test_none_of_three_is_told_without_a_mean():
    text = render(pathfinder(0.50, 0.502, 0.497), "markdown")
    assert "(0 of 3 left chance) °" in text


def test_nothing_is_said_where_all_did_or_where_there_is_one_seed():
    for view in (pathfinder(0.7, 0.71, 0.72), pathfinder(0.5), pathfinder(0.7)):
        assert "left chance" not in render(view, "markdown")


def test_a_score_without_a_known_chance_leaves_it_open():
    cell = pathfinder(0.7, 0.5, chance=None).rows[0].cells["pathfinder"]
    assert (cell.left_chance, cell.left_mean) == (None, None)


def test_seeds_that_failed_are_counted_apart():
    cards = [make_card(task="pathfinder", seed=seed, accuracy=a, chance=0.5) for seed, a in enumerate((0.7, 0.5))]
    cards.append(make_card(task="pathfinder", seed=2, status="fail"))
    text = render(board(cards, ["pathfinder"], "longspan", "smoke"), "markdown")
    assert "(2 of 3 seeds) (1 of 2 left chance: 70.00)" in text


@given(st.lists(st.integers(0, 2000), min_size=2, max_size=5))
def test_each_seed_is_judged_by_the_rule_of_the_board(correct):
    cell = pathfinder(*(one / 2000 for one in correct), count=2000).rows[0].cells["pathfinder"]
    assert cell.left_chance == sum(bool(is_above_chance(one / 2000, 0.5, 2000)) for one in correct)
