"""What a board promises: it never mixes what is not comparable, and it says what it left out."""

import csv
import io
import json

import pytest

from longspan import suites
from longspan.core.errors import UnknownName, UsageError
from longspan.results import collect, official
from longspan.results.board import board
from longspan.results.board_cells import bootstrap_interval
from longspan.results.chance import is_above_chance
from longspan.results.render import FORMS, render
from longspan.results.snapshot import freeze
from tests.results.factory import make_card


def starter(cards, **options):
    return board(cards, "lra-generated", "longspan", "smoke", **options)


def both_tasks(mechanism, listops=0.4, pathfinder=0.7, seeds=3, **fields):
    scores = (("listops", listops, 0.163), ("pathfinder", pathfinder, 0.5))
    return [
        make_card(mechanism, task, seed=seed, accuracy=value + 0.001 * (seed - 1), chance=chance, **fields)
        for task, value, chance in scores
        for seed in range(seeds)
    ]


def test_a_cell_is_the_mean_over_seeds_with_its_spread():
    cell = starter(both_tasks("softmax")).rows[0].cells["listops"]
    assert cell.value == pytest.approx(0.4)
    assert cell.std == pytest.approx(0.001)
    assert cell.seeds == 3
    low, high = cell.interval
    assert 0.399 <= low < 0.4 < high <= 0.401


def test_rows_are_ranked_by_the_first_average_and_ties_share_a_rank():
    view = starter([*both_tasks("worse", 0.3), *both_tasks("best", 0.5), *both_tasks("same", 0.3)])
    assert [(row.mechanism, row.rank) for row in view.rows] == [("best", 1), ("same", 2), ("worse", 2)]


@pytest.mark.parametrize(
    "difference", [{"protocol": "lra-paper"}, {"tier": "full"}, {"variant": "standin"}, {"variant": "allison"}]
)
def test_what_does_not_compare_does_not_meet(difference):
    view = starter([*both_tasks("softmax"), *both_tasks("other", **difference)])
    assert [row.mechanism for row in view.rows] == ["softmax"]
    assert view.off == ()


def test_standin_data_has_a_board_of_its_own_that_says_so():
    view = starter(both_tasks("softmax", variant="standin"), data="standin")
    assert len(view.rows) == 1
    assert "stand-in" in view.title
    assert any("Stand-in" in note for note in view.notes)


def test_every_substitute_for_the_data_of_a_task_has_a_board_of_its_own_that_names_it():
    cards = [c for kind in ("standin", "allison", "faces+photos", "imported") for c in both_tasks(kind, variant=kind)]
    for kind in ("standin", "allison", "faces+photos"):
        view = starter(cards, data=kind)
        assert [row.mechanism for row in view.rows] == [kind]
        assert view.off == ()
    assert starter(cards, data="allison").title.endswith(", allison data")
    assert any("The data are faces+photos" in note for note in starter(cards, data="faces+photos").notes)
    assert [row.mechanism for row in starter(cards).rows] == ["imported"]
    assert "data" not in starter(cards).title


def test_every_kind_of_data_is_collected_real_data_first_and_one_can_be_asked_for():
    kinds = ("allison", "standin", "official")
    cards = [card for kind in kinds for card in both_tasks("softmax", variant=kind)]
    assert [view.data for view in collect.boards(cards, "lra-generated")] == ["real", "allison", "standin"]
    assert [view.data for view in collect.boards(cards, "lra-generated", data="allison")] == ["allison"]
    assert [view.data for view in collect.boards(cards, "lra-generated", data="official")] == ["real"]


def test_a_pattern_can_be_chosen_and_patterns_never_share_a_ranking():
    cards = [*both_tasks("linear"), *both_tasks("local", 0.9, pattern="causal_self")]
    assert [row.pattern for row in starter(cards, pattern="causal_self").rows] == ["causal_self"]
    with pytest.raises(UsageError, match=r"several patterns \(causal_self, noncausal_self\)"):
        starter(cards)
    views = list(collect.boards(cards, "lra-generated"))
    assert [(view.pattern, [(row.mechanism, row.rank) for row in view.rows]) for view in views] == [
        ("noncausal_self", [("linear", 1)]),
        ("causal_self", [("local", 1)]),
    ]
    assert ["causal_self" in view.title for view in views] == [False, True]


@pytest.mark.parametrize("given", [("NS", "CS", "NC", "CC", "NS+CS"), ("NS+CS", "CC", "NC", "CS", "NS")])
def test_boards_of_patterns_come_in_the_order_of_the_benchmark(given):
    cards = [card for word in given for card in both_tasks("linear", pattern=collect.pattern_name(word))]
    found = [view.pattern for view in collect.boards(cards, "lra-generated")]
    assert found == ["noncausal_self", "causal_self", "noncausal_cross", "causal_cross", "noncausal_self+causal_self"]


def test_overridden_runs_are_listed_off_the_board():
    view = starter([make_card("softmax", overrides={"recipe.steps": 5})])
    assert view.empty
    assert "recipe.steps=5" in view.off[0].reason
    assert "Off the board" in render(view)


def test_an_older_version_of_a_task_is_off_the_board(monkeypatch):
    monkeypatch.setattr(official, "_tasks", dict)  # as for tasks that are plug-ins
    view = starter([make_card("softmax"), make_card("linear", task_version=2)])
    assert [row.mechanism for row in view.rows] == ["linear"]
    assert "version 1 of the task" in view.off[0].reason


def test_fidelity_rows_and_the_free_track_stand_apart():
    cards = [*both_tasks("softmax"), *both_tasks("lra_local", fidelity=True), *both_tasks("tuned", track="free")]
    view = starter([*cards, *both_tasks("wide", parameters=120_000)])
    assert [row.mechanism for row in view.rows] == ["softmax"]
    assert [row.mechanism for row in view.fidelity] == ["lra_local"]
    assert {row.mechanism for row in view.free} == {"tuned", "wide"}
    assert view.fidelity[0].rank is None
    assert "10 %" in next(row for row in view.free if row.mechanism == "wide").note


def test_an_average_needs_every_task_and_names_what_is_missing():
    row = starter([make_card("softmax")]).rows[0]
    assert row.averages["avg"].value is None
    assert row.averages["avg"].missing == ("pathfinder",)
    assert row.rank is None


def test_a_cell_whose_seeds_all_failed_is_fail_and_some_are_counted():
    cards = [
        make_card("softmax", seed=0, status="fail"),
        make_card("linear", seed=0),
        make_card("linear", seed=1, status="fail"),
    ]
    linear, softmax = starter(cards).rows
    assert softmax.cells["listops"].status == "fail"
    assert softmax.averages["avg"].missing == ("listops (FAIL)", "pathfinder")
    assert (linear.cells["listops"].seeds, linear.cells["listops"].failed) == (1, 1)
    assert "1 of 2 seeds" in render(starter(cards))


def lra_cards(pathx):
    scores = {"listops": 0.36, "text": 0.64, "retrieval": 0.57, "image": 0.42, "pathfinder": 0.71, "pathx": pathx}
    chances = {"listops": 0.163, "image": 0.1}
    return [make_card("softmax", t, accuracy=v, chance=chances.get(t, 0.5)) for t, v in scores.items()]


def test_path_x_at_chance_is_fail_and_counts_as_fifty_in_the_six_task_average_only():
    row = board(lra_cards(0.51), "lra", "longspan", "smoke").rows[0]
    assert row.cells["pathx"].status == "fail"
    assert row.averages["avg5"].value == pytest.approx(0.54)
    assert row.averages["avg6"].value == pytest.approx((5 * 0.54 + 0.5) / 6)


def test_path_x_above_chance_is_a_number():
    row = board(lra_cards(0.61), "lra", "longspan", "smoke").rows[0]
    assert row.cells["pathx"].status == "ok"
    assert row.averages["avg6"].value == pytest.approx((5 * 0.54 + 0.61) / 6)


def test_above_chance_means_three_standard_errors_above_the_majority_rate():
    error = (0.163 * 0.837 / 2000) ** 0.5
    assert is_above_chance(0.163 + 3.01 * error, 0.163, 2000) is True
    assert is_above_chance(0.163 + 2.99 * error, 0.163, 2000) is False
    assert is_above_chance(0.9, None, 2000) is None


def test_a_lead_within_the_noise_is_shared_and_a_clear_one_is_not():
    close = starter([*both_tasks("a", 0.40), *both_tasks("b", 0.41), *both_tasks("c", 0.30)])
    assert {row.mechanism: row.cells["listops"].leading for row in close.rows} == {"a": True, "b": True, "c": False}


def test_what_any_row_is_clearly_better_than_does_not_lead_even_beside_an_uncertain_best():
    cards = [make_card("a", accuracy=value, count=10**6, seed=seed) for seed, value in enumerate((0.4, 0.5, 0.6))]
    cards += [make_card(name, accuracy=value, count=10**6) for name, value in (("b", 0.49), ("c", 0.48))]
    view = board(cards, suites.get("lra"), "longspan", "smoke")
    assert {row.mechanism: row.cells["listops"].leading for row in view.rows} == {"a": True, "b": True, "c": False}


def test_the_only_score_leads_where_others_failed_but_not_where_nobody_else_ran():
    alone = starter([make_card("softmax")])
    assert not alone.rows[0].cells["listops"].leading
    against_fail = starter([make_card("softmax"), make_card("linear", status="fail")])
    assert [row.cells["listops"].leading for row in against_fail.rows] == [True, False]


def test_what_is_not_above_chance_never_leads():
    view = starter([*both_tasks("a", 0.165), *both_tasks("b", 0.166)])
    assert not any(row.cells["listops"].leading for row in view.rows)


def test_the_bootstrap_is_the_same_every_time_and_needs_two_seeds():
    assert bootstrap_interval([0.1, 0.2, 0.4]) == bootstrap_interval([0.1, 0.2, 0.4])
    assert bootstrap_interval([0.1]) is None


def test_speed_is_compared_over_tasks_that_all_rows_have_run():
    view = starter([*both_tasks("softmax", steps_per_second=10), make_card("linear", steps_per_second=40)])
    assert view.common == ("listops",)
    assert {row.mechanism: row.steps_per_second for row in view.rows} == pytest.approx({"softmax": 10, "linear": 40})


def test_different_data_sets_and_devices_are_noted():
    other = make_card("linear", environment={"cpu": "Other CPU"}, sealed=False)
    other["dataset"]["sha256"] = "1" * 64
    view = starter([make_card("softmax"), {**other, "sha256": "0" * 64}])
    assert any("2 different data sets" in note for note in view.notes)
    assert any("different devices" in note for note in view.notes)


def test_published_rows_are_shown_as_published_beside_recomputed_averages():
    view = board(lra_cards(0.51), "lra", "longspan", "smoke", published="lra-v1")
    sinkhorn = next(row for row in view.published if row.title == "Sinkhorn Trans.")
    assert sinkhorn.scores["pathx"] == "FAIL"
    assert sinkhorn.average_is_wrong
    assert "51.58 (printed 52.78)" in render(view, "markdown").replace("\\", "")
    with pytest.raises(UsageError, match="belongs to suite lra"):
        starter([], published="lra-v1")


def test_a_board_can_be_made_of_any_tasks():
    view = board([make_card("softmax", "text_1k")], ["text_1k"], "longspan", "smoke")
    assert view.rows[0].cells["text_1k"].value == 0.4
    assert view.rows[0].averages == {}


# ----------------------------------------------------------------------------------------------------------- renderings

HOSTILE = "<script>alert(1)</script>|*x*\x1b[31m\n[red]&_%$"


@pytest.mark.parametrize("form", FORMS)
def test_every_form_shows_every_mechanism(form):
    view = starter(
        [*both_tasks("softmax"), *both_tasks("linear(eps=1e-06)", 0.3), *both_tasks("lra_local", fidelity=True)]
    )
    text = render(view, form, width=200)
    for title in ("Softmax", "Linear", "Lra Local"):
        assert title in text


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_board_renders(form):
    assert render(starter([]), form)


def test_a_hostile_title_is_harmless_in_every_form():
    view = starter([*both_tasks("softmax", title=HOSTILE), *both_tasks("formula", title="=HYPERLINK(1)")])
    assert all("\x1b[31m" not in render(view, form) for form in FORMS)
    assert "<script>" not in render(view, "html")
    assert "\\<script\\>" in render(view, "markdown")
    assert "\\|" in render(view, "markdown")
    assert r"\&\_\%\$" in render(view, "latex")
    assert "[red]" in render(view, "terminal", width=300)
    assert "'=HYPERLINK(1)" in {row["title"] for row in csv.DictReader(io.StringIO(render(view, "csv")))}


def test_csv_and_json_hold_full_precision():
    view = starter([make_card("softmax", accuracy=0.123456789)])
    row = next(row for row in csv.DictReader(io.StringIO(render(view, "csv"))) if row["column"] == "listops")
    assert float(row["value"]) == 0.123456789
    assert json.loads(render(view, "json"))["rows"][0]["cells"]["listops"]["value"] == 0.123456789


def test_an_unknown_form_is_met_with_a_suggestion():
    with pytest.raises(UnknownName, match="Did you mean 'markdown'"):
        render(starter([]), "markdwon")


# ------------------------------------------------------------------------------------------------------------ snapshots


def test_a_snapshot_never_changes(tmp_path):
    view = starter(both_tasks("softmax"))
    path = freeze(view, "2026-spring", tmp_path)
    before = path.read_bytes()
    assert freeze(starter(both_tasks("softmax")), "2026-spring", tmp_path) == path
    with pytest.raises(UsageError, match="frozen with other content"):
        freeze(starter(both_tasks("linear")), "2026-spring", tmp_path)
    assert path.read_bytes() == before
    assert json.loads(before)["snapshot"] == "2026-spring"


@pytest.mark.parametrize("damage", [b"", b'{"a": ', b"\xff", b'{"rank": NaN}', b"[" * 100_000, b"null"])
def test_a_damaged_snapshot_is_kept_and_told_in_a_sentence(damage, tmp_path):
    path = freeze(starter([make_card()]), "spring", tmp_path)
    path.write_bytes(damage)
    with pytest.raises(UsageError, match="frozen with other content"):
        freeze(starter([make_card()]), "spring", tmp_path)
    assert path.read_bytes() == damage


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b"])
def test_a_snapshot_name_stays_in_its_folder(name, tmp_path):
    with pytest.raises(UsageError, match="snapshot name"):
        freeze(starter([]), name, tmp_path)


def test_a_suite_object_and_its_name_give_the_same_board():
    assert starter(both_tasks("softmax")) == board(
        both_tasks("softmax"), suites.get("lra-generated"), "longspan", "smoke"
    )
