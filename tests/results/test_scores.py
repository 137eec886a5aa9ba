"""Scores that are not fractions and where lower is better: boards, renderings and the report handle them."""

import json

import pytest

from longspan.core.errors import UsageError
from longspan.report.build import build
from longspan.results import collect
from longspan.results.board import board, suites_of
from longspan.results.render import FORMS, render
from tests.results.factory import make_card


def make_perplexity(mechanism="softmax", value=15.52, task="lm", *, baseline=900.0, **fields):
    score = {"name": "perplexity", "split": "test", "value": value, "count": 8192, "higher_is_better": False}
    curve = [{"step": 100 * i, "valid_perplexity": value + 5 - i, "valid_loss": 3.0} for i in range(1, 6)]
    return make_card(
        mechanism,
        task,
        score=score | {"unit": "plain", "chance": baseline},
        metrics={"test": {"perplexity": {"value": value, "count": 8192}}},
        curve=curve,
        **{"pattern": "causal_self", **fields},
    )


CARDS = [make_perplexity("softmax", 15.52), make_perplexity("local", 19.73), make_perplexity("abc", 31.53)]


def lm(cards, tasks=("lm",), **options):
    return board(cards, list(tasks), "longspan", "smoke", **options)


def test_lower_is_better_from_the_order_of_rows_to_the_mark_of_the_leader():
    view = lm(CARDS[::-1])
    assert [row.mechanism for row in view.rows] == ["softmax", "local", "abc"]
    assert [row.cells["lm"].leading for row in view.rows] == [True, False, False]
    assert (view.suite.metric, view.suite.higher_is_better, view.suite.unit) == ("perplexity", False, "plain")


def test_an_average_of_perplexities_ranks_upwards():
    cards = [make_perplexity(m, v, t) for m, v in (("softmax", 15.0), ("abc", 30.0)) for t in ("lm", "mlm")]
    view = lm(cards, ("lm", "mlm"))
    assert [(row.mechanism, row.rank) for row in view.rows] == [("softmax", 1), ("abc", 2)]


def test_what_is_worse_than_its_baseline_is_marked_and_never_leads():
    view = lm([make_perplexity("softmax", 950.0), make_perplexity("abc", 31.53), make_perplexity("local", 900.0)])
    marks = {row.mechanism: row.cells["lm"].above_chance for row in view.rows}
    assert marks == {"softmax": False, "abc": True, "local": False}
    (unknown,) = lm([make_perplexity("abc", baseline=None)]).rows
    assert unknown.cells["lm"].above_chance is None


@pytest.mark.parametrize("form", FORMS)
def test_no_rendering_shows_a_perplexity_in_percent(form):
    seeds = [make_perplexity("abc", value, seed=seed) for seed, value in enumerate((31.0, 31.5, 32.6))]
    text = render(lm([*CARDS[:2], *seeds]), form)
    assert "19.73" in text
    assert "1973" not in text.replace(",", "")
    assert form in ("csv", "json") or ("31.7 ± 0.82" in text or r"31.7 $\pm$ 0.82" in text)


def test_large_perplexities_keep_their_digits():
    assert "31,530" in render(lm([make_perplexity("abc", 31_530.4)]), "markdown")


def test_a_share_that_is_no_accuracy_is_shown_in_percent():
    card = make_card("softmax", "sums")
    score = card["score"] | {"name": "rouge1", "value": 0.3456, "unit": "percent", "chance": None}
    text = render(board([make_card("softmax", "sums", score=score)], ["sums"], "longspan", "smoke"), "markdown")
    assert "34.56" in text


def test_what_is_scored_differently_shares_no_board():
    cards = [*CARDS, make_card("softmax")]
    assert [suite.tasks for suite in suites_of(["lm", "mlm", "listops"], cards)] == [("lm", "mlm"), ("listops",)]
    with pytest.raises(UsageError, match=r"scored differently \(lm by perplexity; listops by accuracy\)"):
        lm(cards, ("lm", "listops"))
    (view,) = collect.boards(cards, "lm", published="none")
    assert len(view.rows) == 3


def test_the_scoring_of_a_task_is_that_of_its_newest_version():
    old = make_card("abc", "lm", pattern="causal_self")
    new = make_perplexity("softmax", task_version=2, created="2025-01-01T00:00:00Z")
    view = lm([old, new])
    assert [row.mechanism for row in view.rows] == ["softmax"]
    assert [card.mechanism for card in view.off] == ["abc"]


def test_a_board_can_be_of_several_patterns_replaced_at_once():
    both = make_perplexity("abc", 20.0, pattern="noncausal_self+causal_self")
    (view,) = collect.boards([*CARDS, both], "lm", pattern="CS+NS")
    assert [row.pattern for row in view.rows] == ["noncausal_self+causal_self"]


def test_the_report_shows_perplexities_as_they_are(tmp_path):
    other = make_perplexity("abc", 25.0, pattern="noncausal_self+causal_self")
    index = build([*CARDS, other, make_card("softmax", accuracy=0.4321)], tmp_path / "site")
    page = index.with_name("board.html").read_text()
    assert "19.73" in page
    assert "43.21" in page
    assert "1,973" not in page
    assert "1973" not in page
    assert "noncausal_self+causal_self" in page
    assert "test perplexity, lower is better, mean over seeds" in page
    language, lists = ((tmp_path / "site" / "task" / f"{name}.html").read_text() for name in ("lm", "listops"))
    assert "validation perplexity" in language
    assert "Perplexity by step" in language
    assert '"test perplexity"' in language
    assert "validation accuracy, %" in lists
    own = (tmp_path / "site" / "mechanism" / "local.html").read_text()
    assert "19.73" in own
    assert "1973" not in own


def test_the_json_of_a_board_says_which_way_is_better():
    suite = json.loads(render(lm(CARDS), "json"))["suite"]
    assert (suite["unit"], suite["higher_is_better"]) == ("plain", False)
