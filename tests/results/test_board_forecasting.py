"""Boards of forecasting tasks stand beside the settings that CAB published, and rank by either error."""

import json

import pytest
from typer.testing import CliRunner

from longspan import published
from longspan.cli import app
from longspan.core.errors import UsageError
from longspan.report.build import build
from longspan.results import collect
from longspan.results.card import seal, write
from longspan.results.render import FORMS, render
from longspan.results.scoring import scored_by
from tests.results.factory import make_card

TASK = "forecasting_etth1_univariate"


def forecast(mechanism="softmax", mse=0.25, mae=0.4, *, task=TASK, pattern="noncausal_cross", **fields):
    """A full run under `cab-2023`, scored by its squared error."""
    card = make_card(mechanism, task, sealed=False, tier="full", protocol="cab-2023", pattern=pattern, **fields)
    found = {"mse": {"value": mse, "count": 2144}, "mae": {"value": mae, "count": 2144}}
    card["metrics"] = {"valid": found, "test": found}
    card["score"] |= {"name": "mse", "value": mse, "higher_is_better": False, "unit": "plain", "chance": None}
    return seal(card)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "json"])
@pytest.mark.parametrize("metric", ["mse", "mae"])
def test_every_published_error_stands_on_the_board(metric, form):
    (view,) = collect.boards([forecast()], TASK, metric=metric)
    text = render(view, form, width=200)
    table = published.measured("cab-forecasting")
    assert all(f"{row.value(f'{TASK}_{metric}'):g}" in text for row in table.rows)


def test_the_difference_is_in_the_unit_of_the_error():
    (view,) = collect.boards([forecast("performer(features=16)", mse=0.300)], TASK)
    (row,) = view.rows
    assert row.counterpart == "Performer"
    assert row.differences == {TASK: pytest.approx(0.300 - 0.267)}
    assert "+0.033" in render(view)
    assert "in points" not in render(view)


def test_who_fills_other_slots_has_a_board_of_its_own_without_the_paper():
    views = list(collect.boards([forecast(pattern="noncausal_self"), forecast("abc")], TASK))
    assert [(view.pattern, bool(view.published)) for view in views] == [
        ("noncausal_self", False),
        ("noncausal_cross", True),
    ]
    assert not views[0].rows[0].differences


def test_the_doubtful_error_is_flagged_where_it_is_shown():
    shown = {metric: render(*collect.boards([forecast()], TASK, metric=metric)) for metric in ("mse", "mae")}
    assert "0.240 is printed" in shown["mae"]
    assert "0.240" not in shown["mse"]


def test_rows_are_ranked_by_the_metric_asked_for():
    cards = [forecast("softmax", mse=0.2, mae=0.5), forecast("abc", mse=0.3, mae=0.4)]
    ranked = {m: [row.mechanism for row in next(collect.boards(cards, TASK, metric=m)).rows] for m in ("mse", "mae")}
    assert ranked == {"mse": ["softmax", "abc"], "mae": ["abc", "softmax"]}


def test_another_metric_than_the_score_has_no_chance_level_and_leaves_the_card_alone():
    card = make_card(accuracy=0.4)
    before = json.dumps(card)
    (other,) = scored_by([card], "loss")
    assert other["score"] | {"count": 0} == {
        "name": "loss",
        "split": "test",
        "value": 1.5,
        "count": 0,
        "higher_is_better": False,
        "unit": "plain",
        "chance": None,
    }
    assert scored_by([card], "accuracy") == [card]
    assert json.dumps(card) == before


def test_a_failed_run_stays_on_the_board_of_any_metric():
    failed = make_card("abc", TASK, status="failed", tier="full", protocol="cab-2023", pattern="noncausal_cross")
    (view,) = collect.boards([forecast(), failed], TASK, metric="mae")
    assert {row.mechanism: row.cells[TASK].status for row in view.rows} == {"softmax": "ok", "abc": "fail"}


def test_a_metric_nobody_has_is_refused_with_those_there_are(tmp_path):
    card = forecast()
    write(tmp_path / "cards" / "one.json", card)
    answer = CliRunner().invoke(app, ["board", TASK, "--metric", "rouge1", "--cards", str(tmp_path / "cards")])
    assert answer.exit_code == 2
    assert "mae, mse" in answer.output
    with pytest.raises(UsageError, match="name one of its tasks"):
        list(collect.boards([card], "lra", metric="mae"))
    with pytest.raises(UsageError, match="cab-forecasting"):
        list(collect.boards([card], TASK, published="v1"))


def test_the_site_shows_both_settings_beside_the_papers_rows(tmp_path):
    cards = [forecast(task=task) for task in (TASK, "forecasting_etth1")]
    page = build(cards, tmp_path / "site").with_name("published.html").read_text(encoding="utf-8")
    for row in published.measured("cab-forecasting").rows:
        assert f"{row.value('forecasting_etth1_mse'):g}" in page
        assert f"{row.value(f'{TASK}_mse'):g}" in page
