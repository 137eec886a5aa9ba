"""Ranks over tasks: the chance level is known, and only differences beyond chance rank mechanisms apart."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import analysis
from longspan.analysis import Evidence
from longspan.analysis.ranks import friedman, nemenyi, rank, ranking
from longspan.analysis.score_tables import ScoreTable, own_tables, published_tables
from longspan.report.question_figures import describe
from tests.results.factory import make_card


def table(scores):
    """A table from rows of scores, None where there is none."""
    tasks = {f"t{i}": f"T{i}" for i in range(len(scores[0]))}
    rows = {f"m{i}": {f"t{j}": s for j, s in enumerate(own) if s is not None} for i, own in enumerate(scores)}
    return ScoreTable("here", tasks, {name: name.upper() for name in rows}, rows)


def test_the_critical_values_are_those_of_demsars_table():
    printed = [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]
    assert [nemenyi(count) for count in range(2, 11)] == pytest.approx(printed, abs=0.001)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9))
def test_ranks_share_the_places_that_there_are(scores):
    found = rank(scores)
    assert found.sum() == len(scores) * (len(scores) + 1) / 2
    for one, own in zip(scores, found, strict=True):
        for other, theirs in zip(scores, found, strict=True):
            assert (own < theirs) == (one > other)


def test_the_p_of_three_that_agree_on_two_tasks_is_one_in_six():
    assert friedman(np.array([[1.0, 2, 3], [1, 2, 3]])) == pytest.approx(1 / 6, abs=0.01)
    assert friedman(np.array([[1.0, 2, 3], [3, 2, 1]])) == 1
    assert friedman(np.array([[1.0, 2, 3]] * 8)) < 0.001


def test_the_best_and_the_worst_of_tasks_that_agree_rank_apart_and_neighbours_do_not():
    one = ranking(table([[10 - i + 0.01 * j for j in range(8)] for i in range(5)]))
    assert one.means == [1, 2, 3, 4, 5]
    assert one.critical_difference == pytest.approx(2.728 * math.sqrt(5 * 6 / 48), abs=0.001)  # 2.16
    assert one.apart(0, 3)
    assert not one.apart(0, 2)
    assert one.alike == [(0, 2), (1, 3), (2, 4)]


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=3, max_size=6))
def test_a_bar_joins_those_that_do_not_rank_apart_and_no_others(scores):
    one = ranking(table(scores))
    count = len(one.titles)
    for i in range(count):
        for j in range(i + 1, count):
            assert one.apart(i, j) == (not any(first <= i and j <= last for first, last in one.alike))


def test_gaps_cost_as_little_as_they_can_and_are_named():
    one = ranking(table([[1.0, 2.0, None], [2.0, 3.0, 1.0], [3.0, 4.0, None], [4.0, None, None]]))
    assert (one.tasks, set(one.titles), set(one.left_out)) == (("T0", "T1"), {"M0", "M1", "M2"}, {"T2", "M3"})
    assert ranking(table([[1.0, None], [None, 1.0], [1.0, 2.0]])) is None


def test_own_runs_are_means_over_seeds_in_which_more_is_better():
    cards = [make_card("linear", accuracy=accuracy, seed=seed, tier="full") for seed, accuracy in enumerate((0.2, 0.4))]
    score = {"name": "mse", "split": "test", "value": 2.0, "count": 9, "higher_is_better": False, "chance": None}
    cards += [make_card("linear", "forecasting_etth1", tier="full", score=score)]
    cards += [make_card("local", tier="smoke"), make_card("luna", tier="full", overrides={"a": 1})]
    cards += [make_card("abc", tier="full", status="fail"), make_card("fnet", tier="full", variant="standin")]
    cards += [make_card("none", tier="full")]  # a network without attention is no mechanism
    (one,) = own_tables(cards)
    assert one.scores == {"linear": {"listops": pytest.approx(0.3), "forecasting_etth1": -2.0}}
    assert one.origin == "longspan · full · NS"


def test_published_tables_have_all_rows_of_the_papers():
    sizes = {one.origin: (len(one.scores), len(one.tasks)) for one in published_tables()}
    assert sizes["published (lra-v1)"] == (11, 5)
    assert [sizes[f"published (cab, {code})"] for code in ("NS", "CS", "NC", "CC")] == [(11, 4), (6, 3), (4, 2), (3, 2)]


def test_no_two_models_of_long_range_arena_rank_apart():
    finding = analysis.answer("ranks", Evidence())
    assert all(row[4] == "–" for row in finding.rows)
    assert any("lra-v1" in note and "critical difference 6.75; 0 pairs rank apart" in note for note in finding.notes)
    assert any("so few could not rank apart" in note for note in finding.notes if "CC" in note)
    (figure,) = describe(finding)
    assert len(figure.views) == 6
