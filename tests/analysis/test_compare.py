"""How certain it is that one mechanism beats another: examples and seeds are resampled, paired across both."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from longspan import suites
from longspan.analysis import gather
from longspan.analysis.compare import compare
from longspan.analysis.paired import Scores, interval, paired_draws
from longspan.cli import app
from longspan.core.errors import CorruptFile, DataMissing, UnknownName, UsageError
from longspan.results.predictions import shares
from longspan.results.store import Store
from tests.results.factory import make_card, write_predictions

LISTOPS = suites.of_tasks(["listops"])


def add(folder, mechanism, correct, count=2000, seed=0, **fields):
    path = write_predictions(folder / "predictions.npz", correct, count)
    card = make_card(mechanism, accuracy=correct / count, count=count, seed=seed, tier="full", **fields)
    Store(folder / "cards").add(card, files={"predictions": path})


def add_arrays(folder, mechanism, task, metric, value, arrays, seed=0, **fields):
    path = folder / "predictions.npz"
    np.savez(path, **arrays)
    score = {"name": metric, "split": "test", "value": value, "count": 50, "higher_is_better": False, "chance": None}
    metrics = {split: {metric: {"value": value, "count": 50}} for split in ("valid", "test")}
    card = make_card(mechanism, task, seed=seed, score=score | {"unit": "plain"}, metrics=metrics, **fields)
    Store(folder / "cards").add(card, files={"predictions": path})


def rows(folder, one, other, suite=LISTOPS, **how):
    finding = compare(gather([folder / "cards"]), suite, one, other, **how)
    names = [column.title for column in finding.columns]
    return [dict(zip(names, row, strict=True)) for row in finding.rows], finding.notes


def test_predictions_that_do_not_give_the_score_of_their_card_are_left_out(tmp_path):
    """Else a card on which the score is low could win by predictions that are better."""
    add(tmp_path, "softmax", 1000)
    path = write_predictions(tmp_path / "predictions.npz", 1900, 2000)
    Store(tmp_path / "cards").add(make_card("linear", accuracy=0.4, tier="full"), files={"predictions": path})
    (row,), notes = rows(tmp_path, "linear", "softmax")
    assert (row["linear"], row["Examples"]) == ("40.00", None)
    assert any("does not give the accuracy on its card" in note for note in notes)


# ----------------------------------------------------------------------------------------------------------- the draws


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 60), st.integers(1, 80), st.integers(0, 9))
def test_draws_scatter_around_the_difference_of_the_means(seeds, others, examples, block, key):
    random = np.random.default_rng(key)
    one, other = (Scores(random.random((count, examples))) for count in (seeds, others))
    draws = paired_draws(one, other, draws=400, block=block)
    low, high = interval(draws)
    assert low <= high
    assert np.isfinite(draws).all()
    spread = draws.std() / 400**0.5
    assert abs(draws.mean() - (one.mean - other.mean)) <= 6 * spread + 1e-12
    assert (paired_draws(one, one, draws=50).mean() == 0) == (seeds == 1)


def test_overlapping_windows_in_blocks_have_the_wider_interval():
    """A hundred errors, each seen thirty times, are a hundred examples, not three thousand.

    A block that begins within a run of equal errors holds parts of two runs, which leaves two thirds of the variance.
    """
    errors = np.random.default_rng(0).normal(size=100)
    one, other = Scores(np.repeat(errors, 30)[None] + 0.1), Scores(np.zeros((1, 3000)))
    single, blocks = (np.subtract(*interval(paired_draws(one, other, block=block))[::-1]) for block in (1, 30))
    assert blocks == pytest.approx(2 * 1.96 * errors.std() / 10 * math.sqrt(2 / 3), rel=0.1)
    assert single == pytest.approx(blocks / math.sqrt(30 * 2 / 3), rel=0.1)


def test_a_perplexity_is_e_to_the_quotient_of_sums():
    nats, tokens = np.array([[2.0, 6.0]]), np.array([[1.0, 3.0]])
    assert Scores(nats, tokens, exponential=True).mean == pytest.approx(math.exp(2))


def test_shares_add_up_to_the_score_or_are_refused(tmp_path):
    path = tmp_path / "p.npz"
    np.savez(path, row=[1, 0], nats=[6.0, 2.0], tokens=[3, 1], mcd_cost=[4.0, 2.0], made_frames=[1.0, 2.0], mse=[1, 3])
    assert [list(part) for part in shares(path, "perplexity")] == [[2.0, 6.0], [1.0, 3.0]]
    assert sum(shares(path, "mcd")[0]) / sum(shares(path, "mcd")[1]) == 2.0
    assert [list(part) for part in shares(path, "mse")] == [[3.0, 1.0], [1.0, 1.0]]
    assert shares(path, "rouge1") is None
    np.savez(path, nats=[6.0, 2.0], tokens=[3, -1])
    with pytest.raises(CorruptFile, match="tokens must be at least 0"):
        shares(path, "perplexity")


# ----------------------------------------------------------------------------------------------------------- the table


def test_one_is_sure_of_forty_more_of_the_same_examples_and_not_of_one(tmp_path):
    for name, correct in (("softmax", 1000), ("linear", 1040), ("local", 1001)):
        add(tmp_path, name, correct)
    (row,), notes = rows(tmp_path, "linear", "softmax")
    assert (row["Difference"], row["Sure of linear"], row["Better"]) == ("+2.00", "> 99.9 %", "linear")
    (turned,), _ = rows(tmp_path, "softmax", "linear")
    assert (turned["Difference"], turned["Sure of softmax"], turned["Better"]) == ("-2.00", "< 0.1 %", "linear")
    (row,), _ = rows(tmp_path, "local", "softmax")
    assert row["Better"] == "open"
    assert "not the luck of training" in " ".join(notes)


def test_the_luck_of_seeds_makes_one_less_sure(tmp_path):
    for seed, (mine, theirs) in enumerate([(1000, 1100), (1200, 1000), (1040, 1060)]):
        add(tmp_path, "softmax", theirs, seed=seed)
        add(tmp_path, "linear", mine, seed=seed)
    (row,), notes = rows(tmp_path, "linear", "softmax")
    assert (row["Seeds"], row["Better"]) == ("3 / 3", "open")
    assert 50 < float(row["Sure of linear"].removesuffix(" %")) < 97.5
    assert any("Over 3 seeds intervals are too narrow" in note for note in notes)


def test_the_lower_perplexity_is_the_better_one(tmp_path):
    tokens = np.full(50, 10)
    for name, nats in (("softmax", 20.0), ("linear", 25.0)):
        arrays = {"nats": nats + np.arange(50.0) / 50, "tokens": tokens}
        add_arrays(tmp_path, name, "lm", "perplexity", math.exp((nats + 0.49) / 10), arrays)
    (row,), _ = rows(tmp_path, "softmax", "linear", suites.of_tasks(["lm"], "perplexity", False, "plain"))
    assert (row["Sure of softmax"], row["Better"], row["Examples"]) == ("> 99.9 %", "softmax", 50)
    assert row["softmax"] == f"{math.exp(2.049):.4g}"


def test_windows_of_a_series_are_drawn_in_blocks(tmp_path):
    task = "forecasting_etth1"
    for name, mse in (("softmax", 1.0), ("linear", 1.1)):
        settings = make_card()["settings"] | {"data": {"horizon": 20}}
        add_arrays(tmp_path, name, task, "mse", mse, {"mse": np.full(100, mse)}, settings=settings)
    _, notes = rows(tmp_path, "softmax", "linear", suites.of_tasks([task], "mse", False, "plain"))
    assert any("blocks of 20 neighbours" in note and "5 of them" in note for note in notes)


def test_scores_without_shares_are_drawn_over_seeds_and_one_seed_gives_no_interval(tmp_path):
    arrays = {"category": np.array(["a", "b"]), "cd_l1": np.array([1.0, 2.0])}
    suite = suites.of_tasks(["point_cloud_completion"], "cd_l1", False, "plain")
    for name, value in (("softmax", 1.0), ("linear", 2.0)):
        add_arrays(tmp_path, name, "point_cloud_completion", "cd_l1", value, arrays)
    (row,), _ = rows(tmp_path, "softmax", "linear", suite)
    assert (row["Examples"], row["95 % interval"], row["Better"]) == (None, "–", "open")
    for name, value in (("softmax", 1.1), ("linear", 2.1)):
        add_arrays(tmp_path, name, "point_cloud_completion", "cd_l1", value, arrays, seed=1)
    (row,), notes = rows(tmp_path, "softmax", "linear", suite)
    assert (row["Sure of softmax"], row["Better"]) == ("> 99.9 %", "softmax")
    assert any("seeds alone are drawn" in note for note in notes)


def test_what_cannot_be_compared_is_said(tmp_path):
    add(tmp_path, "softmax", 1000)
    add(tmp_path, "linear", 1000, task="image")
    with pytest.raises(UnknownName, match="No finished run of listops by 'linear'"):
        rows(tmp_path, "softmax", "linear")
    with pytest.raises(UsageError, match="named twice"):
        rows(tmp_path, "softmax", "softmax")
    with pytest.raises(DataMissing, match="finished runs of both"):
        rows(tmp_path, "softmax", "linear", suites.get("lra"))
    with pytest.raises(DataMissing):
        rows(tmp_path, "softmax", "linear", tier="lite")
    other = make_card()["dataset"] | {"sha256": "1" * 64}
    add(tmp_path, "linear", 1000, dataset=other)
    with pytest.raises(DataMissing):
        rows(tmp_path, "softmax", "linear")


@pytest.mark.parametrize("form", ["terminal", "md", "csv", "json"])
def test_the_board_compares_two_on_request(tmp_path, form):
    add(tmp_path, "softmax", 1000)
    add(tmp_path, "linear", 1040)
    words = ["board", "lra", "--compare", "linear", "softmax", "--cards", str(tmp_path / "cards"), "--format", form]
    answer = CliRunner().invoke(app, words, env={"COLUMNS": "160"})
    assert answer.exit_code == 0
    assert "+2.00" in answer.output
    if form == "json":
        assert json.loads(answer.output)["rows"][0]["Better"] == "linear"
    assert CliRunner().invoke(app, [*words[:-1], "latex"]).exit_code == 2
    assert CliRunner().invoke(app, [*words, "--snapshot", "a"]).exit_code == 2
