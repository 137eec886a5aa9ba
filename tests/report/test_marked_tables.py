"""Marked tables of a page match the cards; everything else on the page is left alone."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from longspan.analysis.cards import Evidence, gather
from longspan.cli.app import app
from longspan.core.errors import LongspanError
from longspan.report.marked_tables import END, TABLES, fill
from longspan.results.store import Store
from tests.results.factory import make_card

ROOT = Path(__file__).parents[2]
SCORES = "<!-- cards: scores listops full -->"


def evidence(*cards):
    return Evidence.of(cards, (), ())


def card(mechanism="softmax", task="listops", **fields):
    return make_card(mechanism, task, **{"tier": "full"} | fields)


def filled(words, *cards):
    return fill(f"<!-- cards: {words} -->\n{END}", evidence(*cards))


@pytest.mark.parametrize(
    "page, mark",
    [
        ("results/h200/README.md", SCORES),
        pytest.param("docs/lra-findings.md", "<!-- cards: differences", marks=pytest.mark.full),  # a long bootstrap
        pytest.param("docs/findings.md", "<!-- cards: finding", marks=pytest.mark.full),  # long permutations
    ],
)
def test_a_committed_page_is_what_the_command_writes_from_the_committed_cards(page, mark):
    text = (ROOT / page).read_text()
    assert mark in text
    device = "h200" if page.startswith("results") else "*"
    cards = gather(sorted(ROOT.glob(f"results/{device}/cards")))
    assert fill(text, cards) == text, f"run `make generated` and commit {page}"


@given(st.lists(st.sampled_from(["words", "", "| a | b |", f"{SCORES}\nold digits\n{END}", "<!-- a comment -->"])))
def test_filling_twice_changes_nothing_and_prose_is_left_alone(pieces):
    page = "\n".join(pieces)
    once = fill(page, evidence(card()))
    assert fill(once, evidence(card())) == once
    assert "old digits" not in once
    prose = [line for piece in pieces if not piece.startswith(SCORES) for line in piece.split("\n")]
    rest = once
    for line in prose:
        assert line in rest
        rest = rest[rest.index(line) + len(line) :]


def test_a_card_more_is_a_line_more():
    before = filled("scores listops full", card(accuracy=0.36))
    after = filled("scores listops full", card(accuracy=0.36), card("linear", accuracy=0.375))
    assert "| linear | longspan | 37.50 | 16.13 / 17.15 |" in after
    assert len(after.splitlines()) == len(before.splitlines()) + 1


def test_seeds_stand_side_by_side_with_mean_and_deviation():
    text = filled("scores listops full", *(card(seed=s, accuracy=a) for s, a in enumerate((0.35, 0.36, 0.37))))
    assert "| 35.00, 36.00, 37.00: 36.00 ± 1.00 |" in text


def test_seeds_at_chance_are_counted():
    cards = [card(task="pathfinder", seed=s, accuracy=a, chance=0.5) for s, a in enumerate((0.5, 0.7, 0.72))]
    assert "(2 of 3 left chance)" in filled("scores pathfinder full", *cards)
    assert "(not above chance)" in filled("scores pathfinder full", cards[0])


def test_the_free_track_has_no_published_score_beside_it_and_a_shared_device_no_speed():
    timing = {"wall_seconds": 60.0, "steps_per_second": 5.0, "examples_per_second": 50.0, "shared": True}
    text = filled("scores listops full", card(track="free", protocol="strong", timing=timing))
    assert "| softmax | strong | 40.00 | – | – (shared) | – |" in text


def test_stand_ins_other_tiers_and_overridden_runs_are_no_scores():
    others = [card(variant="standin"), card(tier="lite"), card(overrides={"model.dim": 8}), card(task="image")]
    assert "No cards yet." in filled("scores listops full", *others)


def test_changed_settings_stand_below_the_run_that_changed_nothing():
    text = filled("changed listops full", card(accuracy=0.3), card(accuracy=0.4, overrides={"model.dropout": 0.1}))
    nothing, changed = text.index("nothing"), text.index("model.dropout=0.1")
    assert nothing < changed


def test_a_board_says_which_task_an_average_waits_for():
    three = [card(task=task) for task in ("listops", "text_1k", "image")]
    assert "No Avg 4 yet: the fullest row lacks pathfinder." in filled("board lra4 longspan full", *three)
    assert "| 40.00 |" in filled("board lra4 longspan full", *three, card(task="pathfinder"))


def test_what_a_card_says_cannot_break_the_table():
    text = filled("scores listops full", card("evil(x='|')\n<!-- end of cards -->", title="Evil"))
    assert text.count("\n| ") == 3
    assert text.count(END) == 1


@pytest.mark.parametrize(
    "page, sentence",
    [
        (f"<!-- cards: score listops full -->\n{END}", "Did you mean 'scores'"),
        (f"<!-- cards: scores listops -->\n{END}", "cannot be made"),
        (f"<!-- cards: metrics listops full -->\n{END}", "without one"),
        (f"<!-- cards: misprints ABC -->\n{END}", "No paper is called 'ABC'"),
        (SCORES, "has no end"),
        (END, "ends twice"),
        (f"{SCORES}\n{SCORES}\n{END}", "before the last one ended"),
    ],
)
def test_a_mark_that_cannot_be_read_is_refused_with_a_sentence(page, sentence):
    with pytest.raises(LongspanError, match=sentence):
        fill(page, evidence(card()))


OF_PAPERS = ("artefacts", "misprints")  # not empty even without a card


@pytest.mark.parametrize("name", [name for name in TABLES if name not in OF_PAPERS])
def test_without_cards_a_table_says_so(name):
    arguments = {"scores": "listops full", "changed": "image full", "board": "lra4 longspan full", "times": "4096"}
    arguments |= {"metrics": "lm lite loss", "language": "lm lite 256", "finding": "growth"}
    assert "No cards yet." in filled(f"{name} {arguments.get(name, 'listops')}")


def test_the_command_writes_once_and_then_finds_nothing_to_do(tmp_path):
    Store(tmp_path / "cards").add(card())
    page = tmp_path / "page.md"
    page.write_text(f"Above.\n{SCORES}\n{END}\nBelow.\n")

    def command(*more):
        return CliRunner().invoke(app, ["tables", str(page), "--cards", str(tmp_path / "cards"), *more])

    assert command("--check").exit_code == 1
    assert "| softmax |" not in page.read_text()
    assert command().exit_code == 0
    text = page.read_text()
    assert "| softmax | longspan | 40.00 |" in text
    assert (text.startswith("Above.\n"), text.endswith("\nBelow.\n")) == (True, True)
    assert command("--check").exit_code == 0
    assert command().output == ""
    page.unlink()
    assert command().exit_code == 2


def test_a_finding_is_cut_down_to_rows_with_all_words_and_columns_that_say_something():
    text = filled("finding convergence published -Performer", card(task="image"))
    assert "| Linformer | published | 452 | 875 |" in text
    assert "| Performer" not in text
    assert "Seeds" not in text  # it would be a column of dashes
    assert "No cards yet." in filled("finding convergence nowhere", card(task="image"))
