"""Typed overrides by dotted name: all at once, in any order, or a clear error."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.core.errors import UnknownName, UsageError
from longspan.core.settings import override
from longspan.datasets import pathfinder


@dataclass(frozen=True)
class Range:
    low: int = 0
    high: int = 1

    def __post_init__(self):
        if self.low >= self.high:
            raise UsageError(f"low lies below high, got {self.low} and {self.high}.")


@dataclass(frozen=True)
class Settings:
    range: Range = field(default_factory=Range)
    name: str = "plain"


@given(st.integers(-50, 50), st.integers(1, 50), st.booleans())
def test_settings_that_must_fit_one_another_are_changed_together_in_any_order(low, width, reverse):
    changes = {"range.low": low, "range.high": low + width, "name": "other"}
    if reverse:
        changes = dict(reversed(changes.items()))
    assert override(Settings(), changes) == Settings(Range(low, low + width), "other")


def test_the_side_and_the_difficulty_of_pathfinder_are_changed_together():
    """Each alone is refused: only small images have short contours."""
    changed = override(pathfinder.SMOKE, {"size": 32, "difficulty": "hard"})
    assert (changed.size, changed.difficulty) == (32, "hard")
    with pytest.raises(UsageError, match="set both or neither"):
        override(pathfinder.SMOKE, {"size": 32})


def test_nothing_changed_is_the_very_same():
    settings = Settings()
    assert override(settings, {}) is settings


@pytest.mark.parametrize(
    "changes, error, words",
    [
        ({"range.low": 5}, UsageError, "low lies below high"),
        ({"range.lwo": 5}, UnknownName, "Did you mean 'low'"),
        ({"range.low.more": 5}, UnknownName, "No setting 'range.low.more'"),
        ({"range": 5}, UsageError, "a group of settings; name one of range.low, range.high"),
        ({"name": 5}, UsageError, "takes str, got 5"),
        ({"name": "x", "range.high": "y"}, UsageError, "'range.high' takes int"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_a_sentence(changes, error, words):
    with pytest.raises(error, match=words):
        override(Settings(), changes)
