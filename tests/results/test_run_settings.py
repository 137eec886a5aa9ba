"""The settings of a run as text: the differences between two are listed, and nothing else."""

from longspan.results.run_settings import decisive, difference
from tests.results.factory import make_card


def with_setting(value):
    card = make_card()
    settings = card["settings"] | {"recipe": card["settings"]["recipe"] | {"own": value}}
    return decisive(card | {"settings": settings})


def test_values_that_python_takes_for_equal_are_told_apart_and_whole_numbers_are_not():
    written = [with_setting(value)["recipe.own"] for value in (1, True, 1.0, 0, False, -0.0, "1", None) * 2]
    assert written == ["1", "true", "1", "0", "false", "0", '"1"', "null"] * 2
    assert difference(with_setting(1), with_setting(1.0)) is None
    assert difference(with_setting(1), with_setting(True)) == "recipe.own 1, the board shows true"
