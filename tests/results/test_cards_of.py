"""A board reads only the cards of its own tasks, and equals the board made from all cards."""

from pathlib import Path

import pytest

from longspan import suites
from longspan.core.errors import UsageError
from longspan.results import collect

FOLDERS = [Path(__file__).parents[2] / "results" / "h200" / "cards"]


@pytest.mark.parametrize("name", [*suites.names(), "lm", "listops"])
def test_the_board_of_a_suite_or_task_is_that_of_all_cards(name):
    everything, own = collect.cards_in(FOLDERS), collect.cards_of(name, FOLDERS)
    assert len(own.cards) < len(everything.cards)
    assert list(collect.boards(own.cards, name)) == list(collect.boards(everything.cards, name))


def test_a_misspelled_name_is_answered_with_the_tasks_on_cards():
    found = collect.cards_of("listop", FOLDERS)
    assert len(found.cards) == len(collect.cards_in(FOLDERS).cards)
    with pytest.raises(UsageError, match="Did you mean 'listops'"):
        list(collect.boards(found.cards, "listop"))
