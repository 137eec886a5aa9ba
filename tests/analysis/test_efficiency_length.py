"""Table 11 and figure 2 of CAB: lengths only where the baseline is quadratic, and costs beside the baseline's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan import analysis
from longspan.analysis import Evidence
from longspan.analysis.crossover import cab_2023
from longspan.analysis.parabola import parabola
from longspan.analysis.relative import cheaper_from
from longspan.core.errors import DataMissing
from longspan.report.question_figures import describe
from tests.results.factory import make_core

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
QUADRATIC = {n: 1e-5 + 2e-11 * n**2 for n in LENGTHS}
STRAIGHT = {n: 5e-5 + 1e-8 * n for n in LENGTHS}


def rows_of(question, *cards):
    finding = analysis.answer(question, Evidence(measurements=cards))
    names = [column.title for column in finding.columns]
    return [dict(zip(names, row, strict=True)) for row in finding.rows], finding


def scattered(law, share, turns=(1, -1, -1, 1, 1, -1)):
    return {n: value * (1 + share * turn) for (n, value), turn in zip(law.items(), turns, strict=True)}


# ---------------------------------------------------------------------------------------------------- efficiency length


def test_the_printed_lengths_stand_beside_own_ones():
    rows, _ = rows_of("efficiency_length", make_core("linear"))
    assert [(row["Mechanism"], row["Time"], row["Memory"]) for row in rows[:3]] == [
        ("Performer", 2361, 37),
        ("LARA", 2541, 68),
        ("ABC", 1877, 70),
    ]
    assert len(rows) == 9


def test_a_length_is_given_where_the_baseline_is_quadratic_and_a_sentence_where_it_is_not():
    cards = [make_core("softmax", QUADRATIC, exact=True, cost="n^2"), make_core("linear", STRAIGHT)]
    rows, finding = rows_of("efficiency_length", *cards)
    (row,) = [row for row in rows if row["Mechanism"] == "Linear" and row["Mode"] == "forward"]
    crossing = (1e-8 + (1e-16 + 4 * 2e-11 * 4e-5) ** 0.5) / (2 * 2e-11)
    assert row["Time"] == round(crossing)
    assert row["Memory"] is None  # uses as many bytes per token as softmax
    assert row["Where there is none"].startswith("memory: the baseline is not quadratic")
    assert any("forward memory" in note and "no length is given" in note for note in finding.notes)


def test_what_declares_n2_has_no_length_unless_cab_fitted_one():
    cards = [
        make_core("softmax", QUADRATIC, exact=True, cost="n^2"),
        make_core("synthesizer", STRAIGHT, cost="n^2"),
        make_core("longshort", STRAIGHT, cost="n^2"),
    ]
    rows, _ = rows_of("efficiency_length", *cards)
    assert {row["Mechanism"] for row in rows if row["Measured on"] != "published"} == {"Longshort"}


def test_the_interval_of_a_length_is_as_wide_as_the_scatter_about_the_fits():
    exact, calm, wild = (
        cab_2023(scattered(QUADRATIC, share), scattered(STRAIGHT, share), "time") for share in (0.0, 0.002, 0.01)
    )
    assert exact.interval == pytest.approx((exact.length, exact.length), rel=1e-6)
    assert calm.interval[0] < calm.length < calm.interval[1]
    assert wild.interval[1] - wild.interval[0] > 2 * (calm.interval[1] - calm.interval[0])


@given(st.lists(st.floats(-1, 1), min_size=6, max_size=6), st.floats(0, 3))
def test_a_parabola_bends_upwards_exactly_where_the_interval_of_its_term_is_above_zero(noise, bend):
    found = parabola(LENGTHS, [1 + bend * (n / 8192) ** 2 + e / 10 for n, e in zip(LENGTHS, noise, strict=True)])
    assert found.interval[0] <= found.a <= found.interval[1]
    if found.p != 0.5 and abs(found.p - 0.025) > 1e-9:
        assert found.bends_upwards == (found.interval[0] > 0)


def test_lengths_of_a_bench_and_printed_ones_are_drawn():
    cards = [make_core("softmax", QUADRATIC, exact=True, cost="n^2"), make_core("linear", STRAIGHT)]
    figures = describe(rows_of("efficiency_length", *cards)[1])
    assert [len(figure.views) for figure in figures] == [2, 1]  # forward and train; the printed lengths


# ------------------------------------------------------------------------------------------------------------- relative


def test_costs_are_divided_by_those_of_softmax_at_the_same_length():
    cards = [make_core("softmax", QUADRATIC, spread=0.0), make_core("linear", STRAIGHT, spread=0.0)]
    rows, finding = rows_of("relative", *cards)
    (time,) = [row for row in rows if (row["Quantity"], row["Mode"]) == ("time", "forward")]
    assert time["256"] == pytest.approx(STRAIGHT[256] / QUADRATIC[256])
    assert time["Cheaper from"] == 2048
    assert all(row["8,192"] == 1.0 for row in rows if row["Quantity"] == "memory")
    assert {view.marks[-1].value for figure in describe(finding) for view in figure.views} == {1.0}


def test_a_quotient_below_one_within_its_spread_is_not_called_cheaper():
    near = {n: 0.99 * value for n, value in QUADRATIC.items()}
    cards = [make_core("softmax", QUADRATIC, spread=0.5), make_core("linear", near, spread=0.5)]
    assert {row["Cheaper from"] for row in rows_of("relative", *cards)[0]} == {None}


@given(st.dictionaries(st.sampled_from(LENGTHS), st.sampled_from([0.5, 1.0, 2.0])))
def test_cheaper_from_is_the_first_length_of_an_unbroken_end(ends):
    found = cheaper_from(ends)
    if found is None:
        assert not ends or ends[max(ends)] >= 1
    else:
        assert all(end < 1 for n, end in ends.items() if n >= found)
        assert all(ends[n] >= 1 for n in [max((n for n in ends if n < found), default=None)] if n)


def test_nothing_is_relative_without_softmax():
    with pytest.raises(DataMissing, match="measure softmax"):
        rows_of("relative", make_core("linear"))
