"""What is left of Long Range Arena: Text at four lengths, reference points on Image, our points beside speed, gaps."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan import analysis
from longspan.analysis import Evidence
from longspan.analysis.rate_interval import rate_interval
from longspan.analysis.run_costs import ARENA, cost_groups
from longspan.analysis.text_lengths import TASKS
from longspan.core.errors import DataMissing
from longspan.report.question_figures import describe
from longspan.results.card import seal
from tests.analysis.answers import gap_card, rollout_card
from tests.results.factory import make_card


def rows_of(question, *runs, **evidence):
    finding = analysis.answer(question, Evidence(runs=runs, **evidence))
    names = [column.title for column in finding.columns]
    return [dict(zip(names, row, strict=True)) for row in finding.rows], finding


# -------------------------------------------------------------------------------------------------- Text, four lengths


def four(scores, valid=None, **fields):
    for task, score, seen in zip(TASKS, scores, valid or scores, strict=False):
        card = make_card("linear", task, accuracy=score, tier="full", sealed=False, **fields)
        card["metrics"]["valid"]["accuracy"]["value"] = seen
        yield seal(card)


def test_text_is_the_best_of_four_and_beside_it_the_length_that_validation_chose():
    (row,), finding = rows_of("text_lengths", *four((0.60, 0.64, 0.62, 0.61), valid=(0.5, 0.6, 0.7, 0.6)))
    assert (row["Best of four"], row["By validation"], row["At"]) == (0.64, 0.62, "3K")
    assert row["Printed"] == 0.6590
    assert len(describe(finding)[0].views) == 1


def test_three_lengths_have_no_best_of_four():
    (row,), finding = rows_of("text_lengths", *four((0.60, 0.64, 0.62)))
    assert (row["2K"], row["4K"], row["Best of four"], row["By validation"]) == (0.64, None, None, None)
    assert finding.notes[0].startswith("No best of four, for want of a length: Linear")


def test_where_validation_is_the_test_set_nothing_is_chosen_by_it():
    (row,), _ = rows_of("text_lengths", *four((0.60, 0.64, 0.62, 0.61), protocol="lra-paper"))
    assert (row["Best of four"], row["By validation"]) == (0.64, None)


def test_without_a_run_of_text_the_command_is_named():
    with pytest.raises(DataMissing, match="longspan run text_1k"):
        rows_of("text_lengths")


# --------------------------------------------------------------------------------------------------------- references


def test_the_papers_three_references_stand_outside_the_rules_beside_its_eleven_models():
    rows, finding = rows_of("references")
    outside = {row["Network"]: row["Image"] for row in rows if row["By the rules"] is False}
    assert list(outside.values()) == pytest.approx([0.8921, 0.7532, 0.6172])
    assert sum(row["By the rules"] is True for row in rows) == 11
    assert "By the rules the best is Sparse Trans. (published), 45.0 points below" in finding.notes[1]


def test_own_runs_with_changed_settings_are_not_by_the_rules():
    changed = make_card("softmax", "image", overrides={"model.pooling": "mean"})
    rows, _ = rows_of("references", make_card("softmax", "image"), changed)
    assert [row["By the rules"] for row in rows[:2]].count(True) == 1
    assert rows[0]["95 % interval"] == "37.85 to 42.15"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.integers(1, 10**6))
def test_the_interval_of_a_rate_holds_it_and_shrinks_with_examples(values, count):
    low, high = rate_interval(values, count)
    assert 0 <= low <= statistics.fmean(values) + 1e-9
    assert statistics.fmean(values) - 1e-9 <= high <= 1
    lower, higher = rate_interval(values, 4 * count)
    assert higher - lower <= high - low + 1e-9


# ---------------------------------------------------------------------------------------------------------- own points


def test_own_points_have_the_speed_of_text_and_the_mean_of_the_tasks_that_all_have():
    def run(name, task, accuracy, speed):
        return make_card(name, task, accuracy=accuracy, tier="full", steps_per_second=speed)

    runs = [
        run("softmax", "text_1k", 0.6, 10.0),
        run("linear", "text_1k", 0.5, 20.0),
        run("softmax", "listops", 0.4, 1.0),
        run("linear", "listops", 0.3, 2.0),
        run("softmax", "image", 0.9, 1.0),  # linear has no Image
        run("local", "listops", 0.9, 9.0),  # local has no Text
    ]
    finding = analysis.answer("tradeoff", Evidence(runs=runs))
    points = {point.mechanism: (point.score, point.speed) for point in finding.figure[0].points}
    assert points == {"softmax": (pytest.approx(0.5), 10.0), "linear": (pytest.approx(0.4), 20.0)}
    assert "mean of ListOps, Text 1K" in finding.figure[0].label
    assert any("not with the paper's" in note for note in finding.notes)


def test_no_task_counts_twice_in_a_mean():
    assert len(ARENA) == len(set(ARENA))


def test_a_run_that_shared_its_device_is_no_point():
    card = make_card("linear", "text_1k", tier="full", sealed=False)
    card["timing"] |= {"shared": 2}
    assert list(cost_groups([make_card("softmax", "text_1k", tier="full"), seal(card)])) == []


# ------------------------------------------------------------------------------------------------- gap and convergence


def test_a_gap_has_an_interval_and_the_printed_one_of_the_same_mechanism_beside():
    rows, finding = rows_of("gap", probes=[gap_card(0.9, 0.4)])
    assert rows[0]["Printed gap"] == pytest.approx((69.45 - 42.44) / 100)
    half = 196 * (0.9 * 0.1 / 100 + 0.4 * 0.6 / 50) ** 0.5
    assert rows[0]["95 % interval"] == f"{50 - half:.2f} to {50 + half:.2f}"
    assert "Own numbers on Image stand beside 1 of the 11 models of the paper." in finding.notes


def test_the_log_of_any_task_that_is_scored_by_accuracy_gives_a_gap():
    card = make_card("linear", "listops", selected_step=200, sealed=False)
    card["curve"] = [{"step": 200, "train_accuracy": 0.5}]
    rows, _ = rows_of("gap", seal(card))
    assert (rows[0]["Task"], rows[0]["Train"], rows[0]["Printed gap"]) == ("listops", 0.5, None)


def test_own_steps_stand_beside_the_printed_ones_of_the_same_mechanism():
    rows, _ = rows_of("convergence", make_card("linear", "image", accuracy=0.4))
    assert (rows[0]["30 %, printed"], rows[0]["35 %, printed"]) == (2186, 3500)
    assert rows[1]["30 %, printed"] is None


# ------------------------------------------------------------------------------------------------------------- Figure 5


def test_maps_by_a_class_token_come_first_and_those_of_a_guessing_model_explain_nothing():
    scores = ((0, 0.5), (1, 0.8))
    runs = [make_card(task="pathfinder", accuracy=score, chance=0.5, seed=seed) for seed, score in scores]
    probes = [rollout_card(run=run) for run in runs]
    mean = {name: value for name, value in probes[0].items() if name != "sha256"}
    mean["results"] = {**mean["results"], "query": "mean"}
    finding = analysis.answer("rollout", Evidence(runs=runs, probes=[seal(mean), probes[1]]))
    assert [gallery.seed for gallery in finding.figure] == [1, 0]
    guessing = [note for note in finding.notes if "explain nothing" in note]
    assert len(guessing) == 1
    assert "seed 0" in guessing[0]
