"""The compositional index: of the paper's rows, and of our own runs by published constants or those of their pool."""

import json
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from longspan import analysis
from longspan.analysis import Evidence
from longspan.analysis.index import answer_published, published_rows, rank, ranks_without
from longspan.analysis.own_index import MIN_POOL, OWN, own_rows
from longspan.cli import app
from longspan.published.index_constants import index_constants
from longspan.report.question_figures import describe
from tests.results.cab_cards import CC, CS, NC, crossed, forecasts, run

NAMES = ("softmax", "abc", "linear", "performer", "local", "luna")


def lm(mechanism, perplexity, **how):
    return run("lm", {"perplexity": perplexity}, mechanism, pattern=CS, tier="lite", **how)


def six(**how):
    return [lm(name, 10.0 + place, **how) for place, name in enumerate(NAMES)]


# ------------------------------------------------------------------------------------------------------------ published


def test_every_published_row_with_an_index_is_there_under_both_constants():
    rows = published_rows()
    assert len(rows) == 2 * (10 + 5 + 4 + 3)
    assert {row.constants for row in rows} == {"cab-2023", "longspan"}


def test_the_paper_leads_by_one_task_where_the_note_says_so():
    finding = answer_published()
    assert any("local leads by Sum alone: without it, it is number 3" in note for note in finding.notes)
    local = next(row for row in published_rows() if row.title == "local")
    assert ranks_without(local, published_rows()) == {"tts": 1, "sum": 3, "sr": 1, "mlm": 1}


def test_the_command_tells_what_is_wrong_with_the_printed_numbers(tmp_path):
    (tmp_path / "cards").mkdir()
    where = ["--cards", str(tmp_path / "cards")]
    answer = CliRunner().invoke(app, ["analyze", "index", "--published", "--json", *where])
    content = json.loads(answer.output)
    printed = {(row["Pattern"], row["Mechanism"]): row for row in content["rows"] if row["Constants"] == "cab-2023"}
    assert printed["NS", "cosFormer"]["Reproduced"] == "from the printed scores"
    assert printed["CS", "ABC"]["Reproduced"].startswith("no: it needs a LM PPL of 31.53")
    assert sum(note.startswith("Printed error.") for note in content["notes"]) == 7
    assert CliRunner().invoke(app, ["analyze", "gap", "--published", *where]).exit_code == 2


# ------------------------------------------------------------------------------------------------------------------ own


def test_full_runs_on_the_data_of_the_tasks_are_counted_by_the_published_constants():
    rows, _ = own_rows(crossed("abc", 5.780, 2.631, 0.3222, 0.0555, 0.2953))
    theirs = {row.constants: row.index for row in published_rows() if (row.pattern, row.title) == (CC, "ABC")}
    assert {row.constants: row.index for row in rows} == pytest.approx(theirs)


def test_other_runs_are_counted_by_the_mean_and_deviation_of_their_own_pool():
    rows, notes = own_rows(six())
    scores = {row.mechanism: row.index for row in rows}
    assert statistics.fmean(scores.values()) == pytest.approx(0)
    assert statistics.stdev(scores.values()) == pytest.approx(1)
    assert max(scores, key=scores.__getitem__) == "softmax"
    assert {row.constants for row in rows} == {OWN}
    assert notes == [
        "CS, cab-2023 · lite, own pool of 6: LM PPL 12.5 ± 1.87; "
        f"out for want of {MIN_POOL} mechanisms: tts_transformer, summarization."
    ]


def test_a_network_without_attention_is_in_no_pool():
    assert own_rows([*six(), lm("none", 100.0)]) == own_rows(six())
    assert own_rows([*six()[:4], lm("none", 100.0)]) == ([], [])


def test_a_pool_of_four_gives_no_index():
    assert own_rows(six()[:4]) == ([], [])
    assert own_rows([lm(name, 10.0) for name in NAMES]) == ([], [])  # all scores are equal


def test_what_is_no_ranked_run_counts_for_nothing():
    others = [lm("cosformer", 1.0, fidelity=True), lm("rfa", 1.0, track="free"), lm("dpfp", 1.0, overrides={"a": 1})]
    others += [lm("yoso", 1.0, variant="standin"), lm("mca", 1.0) | {"status": "fail", "score": None}]
    assert own_rows([*six(), *others]) == own_rows(six())


def test_a_setting_that_too_few_have_is_declared_out_and_the_mean_is_over_the_others():
    errors = {name: (1.0 + place, 2.0 + place) for place, name in enumerate(NAMES)}
    cards = [card for name, own in errors.items() for card in forecasts(own, mechanism=name, tier="lite")]
    rows, (note,) = own_rows([*cards, *forecasts((1, 1, 1), mechanism="luna", tier="lite", seed=0)[2:]])
    assert {row.pattern for row in rows} == {NC}
    assert list(rows[0].tasks) == ["lstf"]
    assert "forecasting_etth2," in note.partition("out for want of")[2]
    assert "ETT MSE 4 ± 1.87; ETT MAE 2 ± 0.935" in note


def test_an_interval_needs_two_seeds_of_every_task():
    rows, _ = own_rows([*six(), *(lm(name, 12.0 + place, seed=1) for place, name in enumerate(NAMES))])
    for row in rows:
        assert row.seeds == 2
        assert row.interval[0] <= row.index <= row.interval[1]
    assert all(row.interval is None for row in own_rows(six())[0])


def test_a_substitute_for_the_data_is_named():
    rows, (note,) = own_rows(six(variant="allison"))
    assert rows
    assert "lm on allison data" in note


@settings(max_examples=20)
@given(st.lists(st.integers(1, 1000), min_size=6, max_size=6, unique=True), st.floats(0.01, 100), st.floats(0, 100))
def test_the_index_of_an_own_pool_does_not_depend_on_the_unit(scores, factor, shift):
    def index(values):
        rows, _ = own_rows([lm(name, value) for name, value in zip(NAMES, values, strict=True)])
        return {row.mechanism: row.index for row in rows}

    assert index([factor * score + shift for score in scores]) == pytest.approx(index(map(float, scores)))


def test_equal_rows_share_a_rank():
    rows = [row for row in published_rows() if (row.pattern, row.constants) == (CC, "cab-2023")]
    assert [rank(row, [*rows, *rows]) for row in rows] == [1, 3, 5]


def test_own_rows_stand_beside_those_of_the_paper_and_are_drawn():
    finding = analysis.answer("index", Evidence(runs=six()))
    assert {row[2] for row in finding.rows} == {"cab-2023 · lite", "published"}
    (figure,) = describe(finding)
    assert len(figure.views) == 1 + 2 * len(index_constants().patterns)
