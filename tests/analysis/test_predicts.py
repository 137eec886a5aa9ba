"""Cheap tasks and expensive ones: pairs by cost, the interval of all pairs at once, and our own indices per pattern."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan import analysis
from longspan.analysis import Evidence
from longspan.analysis.correlation import Pair
from longspan.analysis.own_patterns import own_patterns
from longspan.analysis.predicts import _predictions
from longspan.analysis.task_columns import TaskColumn, cab_columns, own_columns
from longspan.report.question_figures import describe
from longspan.results.card import seal
from tests.results.cab_cards import CS, run
from tests.results.factory import make_card

NAMES = ("softmax", "abc", "linear", "performer", "local", "luna")


def timed(mechanism, task, accuracy, seconds, **fields):
    card = make_card(mechanism, task, accuracy=accuracy, tier="full", sealed=False, **fields)
    card["timing"] |= {"wall_seconds": seconds}
    return seal(card)


def two_tasks(second=lambda place: 0.2 + place / 20):
    """ListOps in an hour, Image in a minute."""
    for place, name in enumerate(NAMES):
        yield timed(name, "listops", 0.3 + place / 20, 3600.0)
        yield timed(name, "image", second(place), 60.0)


def test_the_hours_of_a_printed_task_are_those_of_its_backbones():
    hours = {column.title: column.hours for column in cab_columns()}
    assert hours["NS-TTS"] == 24 + 96
    assert hours["CS-TTS"] == hours["CC-TTS"] == 96
    assert hours["NC-LSTF"] == 1.5 + 2 + 1.5
    assert len(hours) == 11


def test_no_printed_pair_is_shown_to_predict():
    finding = analysis.answer("predicts", Evidence())
    assert {row[-1] for row in finding.rows} == {"not shown", "not tested: fewer than four methods"}
    assert any("in 0 the cheap task predicts the expensive one" in note for note in finding.notes)


def test_an_own_task_predicts_a_longer_one_where_scores_go_together():
    finding = analysis.answer(
        "predicts", Evidence(runs=list(two_tasks(lambda place: 0.2 + place / 20 + place % 2 / 99)))
    )
    first = finding.rows[0]
    assert (first[1], first[3], first[5], first[-1]) == ("NS-ListOps (full)", "NS-Image (full)", 6, "yes")
    assert (first[2], first[4]) == pytest.approx((1.0, 1 / 60))
    assert describe(finding)[0].views[0].label == "own runs"


def test_a_pair_of_like_cost_is_no_prediction():
    like = [TaskColumn("a", {"x": 1, "y": 2, "z": 4}, 3.0), TaskColumn("b", {"x": 1, "y": 2, "z": 3}, 2.0)]
    assert _predictions("own", like) == []
    unknown = [TaskColumn("a", like[0].scores, None), like[1]]
    assert _predictions("own", unknown) == []


@given(st.floats(-0.99, 0.99), st.integers(4, 40), st.integers(1, 200))
def test_the_interval_of_all_pairs_holds_that_of_one(r, methods, pairs):
    pair = Pair(methods, r)
    (low, high), (lower, higher) = pair.interval, pair.interval_at(1 - 0.05 / pairs)
    assert lower <= low <= r <= high <= higher


def test_attention_removed_is_no_method_and_options_that_a_protocol_chose_do_not_part_columns():
    cards = [*two_tasks(), timed("none", "image", 0.1, 60.0)]
    cards += [run("lm", {"perplexity": 9.0}, "performer(features=16)", pattern=CS, tier="lite")]
    columns = {column.title: column for column in own_columns(cards)}
    assert set(columns["NS-Image (longspan, full)"].scores) == set(NAMES)
    assert columns["CS-LM (cab-2023, lite)"].scores == {"performer": -9.0}


def test_own_patterns_have_an_index_each_and_correlate():
    cards = [*two_tasks()]
    cards += [
        run("lm", {"perplexity": 20.0 - place}, name, pattern=CS, tier="lite") for place, name in enumerate(NAMES)
    ]
    columns = {column.title: column.scores for column in own_patterns(cards)}
    assert list(columns) == ["LRA (longspan · full · NS, 2 tasks)", "CS (cab-2023 · lite, own pool)"]
    assert sum(columns["LRA (longspan · full · NS, 2 tasks)"].values()) == pytest.approx(0)
    rows = analysis.answer("correlation", Evidence(runs=cards)).rows
    (row,) = [row for row in rows if row[0] == "own, patterns"]
    assert row[3:5] == (6, pytest.approx(1.0))
    assert {row[0] for row in rows} >= {"longspan · full · NS", "own, tasks of all patterns"}


def test_fewer_than_five_mechanisms_have_no_index_of_the_arena():
    assert own_patterns(list(two_tasks())[:8]) == []
