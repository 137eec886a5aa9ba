"""Boards of CAB: a suite for each pattern, several metrics a task, means of settings, and the index."""

import json

import pytest
from typer.testing import CliRunner

from longspan import published, suites
from longspan.analysis import index
from longspan.analysis.expected_time import Times
from longspan.analysis.plan import missing
from longspan.cli import app
from longspan.cli.run import _fitting, _places
from longspan.core.errors import UsageError
from longspan.published.index_constants import index_constants
from longspan.report.build import build
from longspan.results import collect
from longspan.results.board import board
from longspan.results.render import FORMS, render
from tests.results.cab_cards import CC, CS, NC, NS, crossed, forecasts, run
from tests.results.factory import make_card

CAB = suites.get("cab")


def cc(cards, **how):
    return next(collect.boards(list(cards), "cab", pattern="CC", **how))


# ------------------------------------------------------------------------------------------------------ several metrics


@pytest.mark.parametrize("pattern", CAB.patterns)
def test_a_suite_of_a_pattern_has_the_columns_of_its_published_table(pattern):
    suite = CAB.under(pattern)
    table = published.measured(index_constants().patterns[pattern].table)
    assert (*suite.columns, "ci") == tuple(column.name for column in table.columns)
    assert pattern == table.pattern


def test_each_metric_has_a_direction_a_task_and_constants():
    for suite in CAB.patterns.values():
        for measure in suite.measures:
            assert set(measure.scales) == {"cab-2023", "longspan"}
            assert all(scale.std > 0 for scale in measure.scales.values())
            assert measure.higher_is_better == (
                measure.metric in {"rouge1", "rouge2", "rougeL", "psnr", "ssim", "f_score"}
            )


@pytest.mark.parametrize("form", [form for form in FORMS if form != "json"])
@pytest.mark.parametrize("pattern", CAB.patterns)
def test_every_published_score_stands_on_its_board_digit_by_digit(pattern, form):
    (view,) = collect.boards([], "cab", pattern=pattern)
    text = render(view, form, width=240)
    for row in published.measured(index_constants().patterns[pattern].table).rows:
        assert all(cell in text for name, cell in row.printed.items() if name != "ci"), row.title


def test_before_the_first_run_there_is_a_board_of_each_pattern():
    assert [view.pattern for view in collect.boards([], "cab")] == [NS, CS, NC, CC]
    assert not list(collect.boards([], "cab", published="none"))


def test_the_scores_of_a_published_row_give_its_index():
    view = cc(crossed("abc", 5.780, 2.631, 0.3222, 0.0555, 0.2953))
    (row,) = view.rows
    theirs = next(row for row in view.published if row.title == "ABC")
    assert row.averages["ci"].value == pytest.approx(theirs.averages["ci"]) == pytest.approx(0.058, abs=0.001)
    assert (row.counterpart, row.differences["ci"]) == ("ABC", pytest.approx(0.0))
    assert "+0.059" in render(view)


@pytest.mark.parametrize("pattern", CAB.patterns)
def test_a_board_has_the_indices_of_the_analysis_but_for_the_one_that_the_print_contradicts(pattern):
    """ABC's perplexity is printed as 29.13, which its printed index contradicts; `longspan` has 31.53."""
    code, suite = index_constants().patterns[pattern].code, CAB.under(pattern)
    (view,) = (one for one in collect.boards([], "cab", pattern=code) if one.published)
    titles = {average.constants: average.name for average in suite.averages}
    rows = [row for row in index.published_rows() if row.pattern == pattern]
    shown = {row.title: row.averages for row in view.published}
    off = {
        (row.title, row.constants)
        for row in rows
        if shown[row.title][titles[row.constants]] != pytest.approx(row.index)
    }
    assert off == ({("ABC", "cab-2023")} if pattern == CS else set())


def test_less_distortion_and_more_rouge_rank_upwards():
    cards = [*crossed("abc", 5.0, 2.5, 0.35, 0.06, 0.30), *crossed("softmax", 4.0, 2.2, 0.36, 0.07, 0.31)]
    view = cc(cards)
    assert [(row.mechanism, row.rank) for row in view.rows] == [("softmax", 1), ("abc", 2)]
    best = {column for column, cell in view.rows[0].cells.items() if cell.leading}
    assert best == set(view.suite.columns)


def test_a_column_has_the_unit_of_its_metric():
    text = render(cc(crossed("abc", 5.0, 2.5, 0.3222, 0.06, 0.30)), "markdown")
    assert "| 5 | 2.5 | 32.22 | 6.00 | 30.00 |" in text


def test_a_failed_run_counts_as_missing_in_the_index():
    speech, _ = crossed("abc", 5.0, 2.5, 0.32, 0.06, 0.30)
    failed = make_card("abc", "summarization", status="failed", tier="full", protocol="cab-2023", pattern=CC)
    (row,) = cc([speech, failed]).rows
    assert row.cells["summarization_rouge1"].status == "fail"
    assert row.averages["ci"].value is None
    assert row.averages["ci"].missing == ("summarization (FAIL)",)
    (alone,) = cc([speech]).rows
    assert alone.averages["ci"].missing == ("summarization",)


def test_a_run_without_one_of_the_metrics_is_off_the_board_and_says_so():
    view = cc([run("tts_transformer", {"mcd": 5.0})])
    assert [(card.task, card.reason) for card in view.off] == [("tts_transformer", "without msd")]


@pytest.mark.parametrize("how", [{"tier": "lite"}, {"variant": "allison"}])
def test_the_published_constants_are_for_full_runs_on_the_data_of_the_tasks(how):
    view = cc(crossed("abc", 5.0, 2.5, 0.32, 0.06, 0.30, **how))
    assert not view.suite.averages
    assert "longspan analyze index" in render(view)


def test_rows_without_an_index_are_ordered_by_how_far_they_stand_out():
    scores = {"abc": (5.0, 0.30), "linear": (4.0, 0.31), "softmax": (4.5, 0.33)}
    cards = [card for name, (mcd, r1) in scores.items() for card in crossed(name, mcd, mcd, r1, r1, r1, tier="lite")]
    assert [row.mechanism for row in cc(cards).rows] == ["softmax", "linear", "abc"]


def test_other_patterns_and_combinations_of_them_are_not_on_a_board():
    cards = [run("tts_transformer", {"mcd": 5.0, "msd": 2.5}, pattern=f"{NS}+{CC}")]
    assert all(not view.rows for view in collect.boards(cards, "cab"))
    with pytest.raises(UsageError, match="ranks one of noncausal_self, causal_self"):
        list(collect.boards(cards, "cab", pattern="NS+CC"))
    with pytest.raises(UsageError, match="there are: cab-ns, cab-cs, cab-nc, cab-cc, none"):
        list(collect.boards(cards, "cab", published="v1"))


def test_a_single_task_stands_beside_the_published_rows_of_each_pattern():
    views = list(collect.boards([], "tts_transformer"))
    assert [view.pattern for view in views] == [NS, CS, CC]
    assert [len(view.published) for view in views] == [11, 6, 3]


# ---------------------------------------------------------------------------------------------------- means of settings


def ett(cards):
    (row,) = next(collect.boards(cards, "cab", pattern="NC")).rows
    return row.cells["ett_mse"]


def test_a_mean_of_settings_is_over_all_six():
    cell = ett(forecasts((1, 2, 3, 4, 5, 9)))
    assert (cell.status, cell.value, cell.seeds, cell.std) == ("ok", 4.0, 1, None)


def test_a_mean_of_settings_does_not_exist_while_one_is_missing():
    cell = ett(forecasts((1, 2, 3, 4, 5)))
    assert (cell.status, cell.value, cell.lacking) == ("missing", None, ("forecasting_ettm1_univariate",))
    text = render(next(collect.boards(forecasts((1, 2, 3, 4, 5)), "cab", pattern="NC")), "markdown")
    assert "| 5 of 6 | 5 of 6 |" in text
    assert "2 of 6: so many of the settings" in text


def test_the_spread_of_a_mean_is_that_of_the_seeds_all_settings_have():
    cards = [*forecasts([1] * 6), *forecasts([3] * 6, seed=1), *forecasts([11], seed=2)]
    cell = ett(cards)
    assert cell.value == pytest.approx((5 + 2 * 5) / 6)
    assert (cell.std, cell.seeds) == (pytest.approx(2**0.5), 2)


def test_a_mean_of_settings_fails_with_one_of_them():
    how = {"status": "failed", "tier": "full", "protocol": "cab-2023", "pattern": NC}
    cell = ett([*forecasts((1, 2, 3, 4, 5)), make_card("softmax", "forecasting_ettm1_univariate", **how)])
    assert cell.status == "fail"
    assert "forecasting_ettm1_univariate" in cell.reason


# -------------------------------------------------------------------------------------------------- run, plan, and site


def test_cab_is_run_pattern_by_pattern():
    places = _places(["cab"], "cab-2023", None)
    assert [task for task, pattern in places if pattern == CS] == ["tts_transformer", "summarization", "lm"]
    assert len(places) == 5 + 3 + 11 + 2
    assert _places(["cab"], "cab-2023", "CC") == [("tts_transformer", "CC"), ("summarization", "CC")]
    assert _places(["starter"], "longspan", None) == [("listops", NS), ("recall", CS), ("lm", CS)]
    assert _places(["lra-generated"], "longspan", None) == [("listops", None), ("pathfinder", None)]


def test_a_mechanism_runs_in_the_patterns_it_declares():
    assert _fitting(["softmax", "lara(landmarks=16)", "mine.py:Mine"], CC) == ["softmax", "mine.py:Mine"]


def test_a_plan_for_cab_fills_every_pattern():
    settings = {"cab-2023/full": {"data": {}, "model": {}, "recipe": {"steps": 5}}}
    slots = {"encoder": NS, "decoder": CS, "cross": CC}
    tasks = [{"name": "tts_transformer", "version": 1, "slots": slots, "settings": settings}]
    attentions = [{"name": "softmax", "patterns": [NS, CS, NC, CC], "version": 1, "fidelity": False}]
    catalogue = {"tasks": tasks, "attentions": attentions}
    plan = missing([], catalogue, "cab", Times([], [], "CPU"), protocol="cab-2023")
    assert sorted(one.pattern for one in plan.cells) == sorted([NS, CS, CC])
    assert {one.cell.pattern for one in plan.cells} == {NS, CS, CC}
    assert plan.present == {"tts_transformer": 0}
    one = missing([], catalogue, "cab", Times([], [], "CPU"), protocol="cab-2023", pattern="CC")
    assert [cell.pattern for cell in one.cells] == [CC]


def test_the_board_of_a_pattern_is_printed(tmp_path):
    (tmp_path / "cards").mkdir()
    answer = CliRunner().invoke(
        app, ["board", "cab", "--pattern", "CS", "--format", "json", "--cards", str(tmp_path / "cards")]
    )
    content = json.loads(answer.output)
    assert content["pattern"] == CS
    assert [row["title"] for row in content["published"]][:2] == ["vanilla", "S4D"]
    assert any("31.53" in flag for flag in content["paper"]["flags"])


def test_the_site_shows_the_board_of_several_metrics_beside_those_of_its_tasks(tmp_path):
    cards = [*crossed("softmax", 4.0, 2.2, 0.36, 0.07, 0.31), *crossed("abc", 5.0, 2.5, 0.35, 0.06, 0.30)]
    page = build(cards, tmp_path / "site").with_name("board.html").read_text(encoding="utf-8")
    assert "CAB, causal cross" in page
    assert "TrTTS MSD" in page
    printed = (tmp_path / "site" / "published.html").read_text(encoding="utf-8")
    assert "CAB, training cost of tasks" in printed


def test_a_board_by_name_finds_the_suite_of_its_only_pattern():
    view = board(list(crossed("abc", 5.0, 2.5, 0.32, 0.06, 0.30)), "cab", "cab-2023", "full")
    assert (view.pattern, len(view.suite.columns)) == (CC, 5)
