"""Suites are frozen data: these tests are the freeze."""

import dataclasses

import pytest

from longspan import suites
from longspan.core.errors import UnknownName


def test_lra_has_its_six_tasks_and_both_averages():
    lra = suites.get("lra")
    assert lra.tasks == ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
    five, six = lra.averages
    assert five.tasks == lra.tasks[:5]
    assert not five.fail_as
    assert six.tasks == lra.tasks
    assert six.fail_as == {"pathx": 0.5}


def test_the_starter_suite_needs_no_download():
    starter = suites.get("starter")
    assert (starter.version, starter.tasks) == (2, ("listops", "recall", "lm"))
    assert starter.averages[0].tasks == ("listops", "recall")
    assert starter.patterns == {"listops": "noncausal_self", "recall": "causal_self", "lm": "causal_self"}
    assert (starter.scoring("recall").metric, starter.scoring("lm").metric) == ("accuracy", "perplexity")
    assert suites.get("lra-generated").tasks == ("listops", "pathfinder")


def test_a_suite_cannot_be_edited():
    with pytest.raises(dataclasses.FrozenInstanceError):
        suites.get("lra").version = 2  # type: ignore[misc]


def test_an_unknown_suite_is_met_with_a_suggestion():
    with pytest.raises(UnknownName, match="Did you mean 'starter'"):
        suites.get("started")


@pytest.mark.parametrize("suite", suites.SUITES.values(), ids=lambda suite: suite.name)
def test_averages_are_over_tasks_of_the_suite_that_are_scored_alike(suite):
    assert all(set(average.tasks) <= set(suite.tasks) - set(suite.scored) for average in suite.averages)
    assert set(suite.patterns) in (set(), set(suite.tasks))


def test_a_list_of_tasks_makes_an_unnamed_suite():
    assert suites.of_tasks(["a", "b"]).averages[0].tasks == ("a", "b")
    assert suites.of_tasks(["a"]).averages == ()


def test_columns_are_headed_as_in_the_paper():
    headings = [suites.heading(task) for task in suites.get("lra").tasks]
    assert headings == ["ListOps", "Text", "Retrieval", "Image", "Pathfinder", "Path-X"]
    assert suites.heading("something_else") == "something_else"
