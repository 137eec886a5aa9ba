"""Suites are frozen data: these tests are the freeze."""

import dataclasses

import pytest

from longspan import suites
from longspan.core.errors import UnknownName, UsageError

CAB = suites.get("cab")


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
    assert starter.slots == {"listops": "noncausal_self", "recall": "causal_self", "lm": "causal_self"}
    assert (starter.measure("recall").metric, starter.measure("lm").metric) == ("accuracy", "perplexity")
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
    assert set(suite.slots) in (set(), set(suite.tasks))


def test_a_list_of_tasks_makes_an_unnamed_suite():
    assert suites.of_tasks(["a", "b"]).averages[0].tasks == ("a", "b")
    assert suites.of_tasks(["a"]).averages == ()


def test_columns_are_headed_as_in_the_paper():
    headings = [suites.heading(task) for task in suites.get("lra").tasks]
    assert headings == ["ListOps", "Text", "Retrieval", "Image", "Pathfinder", "Path-X"]
    assert suites.heading("something_else") == "something_else"


def test_cab_has_a_suite_for_each_pattern():
    tasks = {pattern: list(dict.fromkeys(m.task for m in one.measures)) for pattern, one in CAB.patterns.items()}
    assert tasks == {
        "noncausal_self": ["tts", "sum", "sr", "mlm"],
        "causal_self": ["tts", "sum", "lm"],
        "noncausal_cross": ["pcc", "lstf"],
        "causal_cross": ["tts", "sum"],
    }
    assert [len(suite.measures) for suite in CAB.patterns.values()] == [10, 6, 9, 5]
    assert all(suite.version == 1 for suite in (CAB, *CAB.patterns.values()))


@pytest.mark.parametrize("suite", CAB.patterns.values(), ids=lambda suite: suite.title)
def test_in_an_index_all_tasks_count_alike(suite):
    for average in suite.averages:
        weights = suite.weights(average)
        tasks = {measure.task for measure in suite.measures}
        for task in tasks:
            own = sum(weights[measure.name] for measure in suite.measures if measure.task == task)
            assert own == pytest.approx(1 / len(tasks))
        mean = {m.name: m.scales[average.constants].mean / m.factor for m in suite.measures}
        assert suite.mean(average, mean) == pytest.approx(0)
        better = {
            m.name: (
                m.scales[average.constants].mean + (1 if m.higher_is_better else -1) * m.scales[average.constants].std
            )
            / m.factor
            for m in suite.measures
        }
        assert suite.mean(average, better) == pytest.approx(1)


def test_a_pattern_that_a_suite_does_not_rank_is_refused():
    with pytest.raises(UsageError, match="cab was asked for noncausal_self\\+causal_self"):
        CAB.under("noncausal_self+causal_self")
    assert suites.get("lra").under("causal_self") is suites.get("lra")


def test_lra4_is_what_can_be_run_without_citation_pairs_and_path_x():
    suite = suites.get("lra4")
    assert (suite.version, suite.tasks) == (1, ("listops", "text", "image", "pathfinder"))
    assert [average.tasks for average in suite.averages] == [suite.tasks]
    assert suite.tasks_under("longspan") == ("listops", "text_1k", "image", "pathfinder")
    assert suite.tasks_under("strong") == suite.tasks
    assert suite.sources("lra-paper")["text"] == suites.get("lra").sources("lra-paper")["text"]
