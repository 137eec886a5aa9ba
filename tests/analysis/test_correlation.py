"""Correlations over common mechanisms: counted, never below three, and compared with the papers' figures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan import analysis, published
from longspan.analysis import Evidence
from longspan.analysis.correlation import MIN_METHODS, Pair, correlate
from longspan.report.question_figures import describe
from tests.results.factory import make_card

SCORES = st.dictionaries(st.sampled_from("abcdefg"), st.integers(-9, 9).map(float))


@pytest.fixture(scope="module")
def found():
    finding = analysis.answer("correlation", Evidence())
    names = [column.title for column in finding.columns]
    rows = [dict(zip(names, row, strict=True)) for row in finding.rows]
    return {(row["From"].removeprefix("published, "), row["One"], row["Other"]): row for row in rows}, finding


@given(SCORES, SCORES)
def test_a_pair_is_over_common_mechanisms_and_below_three_there_is_no_number(one, other):
    pair, common = correlate(one, other), sorted(set(one) & set(other))
    assert pair == correlate(other, one)
    assert pair.methods == len(common)
    columns = [[own[name] for name in common] for own in (one, other)]
    if len(common) < MIN_METHODS or any(len(set(column)) == 1 for column in columns):
        assert pair.r is None
    else:
        assert pair.r == pytest.approx(np.corrcoef(columns)[0, 1], abs=1e-9)


def test_the_interval_is_fishers_and_needs_four():
    assert Pair(3, 0.5).interval is None
    assert Pair(28, 0.5).interval == pytest.approx((0.156, 0.736), abs=0.001)  # atanh 0.5 ± 1.96 / 5


def test_numbers_so_near_that_their_squares_vanish_have_no_correlation():
    assert correlate({"a": 0.0, "b": 1e-300, "c": 2e-300}, {"a": 1.0, "b": 2.0, "c": 3.0}) == Pair(3, None)


def test_the_correlations_of_patterns_are_those_of_the_printed_indices(found):
    rows, _ = found
    printed = {("NS", "NC"): (4, -0.625), ("NS", "CC"): (3, 0.344), ("NC", "CC"): (3, 0.969), ("NS", "CS"): (3, 0.382)}
    for (one, other), (methods, r) in printed.items():
        row = rows["patterns", one, other]
        assert row["Methods"] == methods
        assert row["r"] == pytest.approx(r, abs=0.01)
    assert ("patterns", "CS", "NC") not in rows  # only ABC has both


def test_figure_4_is_borne_out_among_cross_attentions_and_between_them_and_ns(found):
    rows, finding = found
    held = {pair: row["Agrees"] for pair, row in rows.items() if pair[0] == "tasks" and row["Agrees"] is not None}
    crossed = [agrees for (_, one, other), agrees in held.items() if other[:2] in ("NC", "CC") and one[:2] != "CS"]
    assert len(crossed) == 22
    assert all(crossed)
    assert rows["tasks", "CS-TTS", "CS-LM"]["Agrees"] is False
    assert "Figure 4: 28 of 43 correlations that the printed scores give agree with it." in finding.notes


def test_scores_that_are_not_printed_are_not_held_against_a_figure(found):
    rows, _ = found
    assert rows["tasks", "Text", "NS-TTS"]["Methods"] == 3
    assert all(row["Agrees"] is None for (_, one, _), row in rows.items() if one in ("LRA", "Text", "ListOps", "Image"))


def test_rows_that_the_figure_exchanged_are_found(found):
    _, finding = found
    assert any("shows the correlations of NS under LRA" in note for note in finding.notes)
    assert sum("likely exchanged" in note for note in finding.notes) == 1


@pytest.mark.parametrize("name, size", [("cab-pattern-correlation", 5), ("cab-task-correlation", 16)])
def test_decoded_figures_are_symmetric(name, size):
    table = published.measured(name)
    assert len(table.rows) == len(table.columns) == size
    for row in table.rows:
        assert row.value(row.title) == 1
        assert all(row.value(c.name) == table.row(c.name).value(row.title) for c in table.columns)


def test_own_tasks_are_correlated_where_three_mechanisms_have_both_and_drawn_with_their_number():
    cards = [
        make_card(name, task, accuracy=0.3 + 0.1 * place, tier="full")
        for place, name in enumerate(("softmax", "linear", "local"))
        for task in ("listops", "image")
    ]
    finding = analysis.answer("correlation", Evidence(runs=cards))
    assert finding.rows[0][1:5] == ("ListOps", "Image", 3, pytest.approx(1.0))
    view = describe(finding)[0].views[0]
    assert view.images[0].cells[1][0] == "1.00\n(3)"
    assert analysis.answer("correlation", Evidence(runs=cards[:4])).rows[0][0] == "published, patterns"
