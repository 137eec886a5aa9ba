"""What the commands return in Python: objects with attributes that display, plot and convert to data frames."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest

import longspan
from longspan.core.errors import DataMissing, UsageError
from longspan.results import card as cards_module

ROOT = Path(__file__).parents[2]
CARDS = ROOT / "results" / "h200" / "cards"
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def listops():
    return longspan.board("listops", protocol="longspan", cards=CARDS / "listops")


@pytest.fixture(scope="module")
def run_card():
    return longspan.card(next((CARDS / "listops").glob("*-linear-*.json")))


@pytest.fixture(scope="module")
def measured():
    """A card with calls forward and in training."""
    every = map(longspan.card, sorted((CARDS / "measurements").glob("core-linear-causal_self-*.json")))
    return next(card for card in every if {"forward", "train"} <= {point["mode"] for point in card.points})


def test_a_board_has_rows_shows_itself_and_draws(listops):
    assert listops.row("linear").cells["listops"].value == pytest.approx(0.365)
    assert listops.row("Linear Transformer") is listops.row("linear")
    assert "Linear Transformer" in repr(listops)
    assert "<td" in listops._repr_html_()
    assert listops.plot()._repr_png_().startswith(PNG)
    assert copy.copy(listops).title == listops.title


def test_a_board_becomes_a_frame_with_scores_as_on_the_cards(listops):
    pytest.importorskip("pandas")
    frame = listops.to_pandas()
    assert len(frame) == len(listops.rows)
    assert frame.set_index("mechanism").loc["linear", "listops"] == pytest.approx(0.365)


def test_several_boards_ask_which_one_is_meant():
    with pytest.raises(UsageError, match=r"longspan\.boards\('listops'\)"):
        longspan.board("listops", cards=CARDS / "listops")
    assert len(longspan.boards("listops", cards=CARDS / "listops")) == 2


def test_a_board_without_cards_says_how_to_make_some(tmp_path):
    with pytest.raises(DataMissing, match=r"longspan run starter"):
        longspan.board("starter", cards=tmp_path)


def test_the_fields_of_a_card_are_attributes_and_the_card_is_the_same_dictionary(run_card):
    assert run_card.score.value == run_card["score"]["value"]
    assert run_card == cards_module.read(next((CARDS / "listops").glob("*-linear-*.json")))
    assert "score" in dir(run_card)
    with pytest.raises(AttributeError, match="no field 'scores'"):
        run_card.scores  # noqa: B018
    assert repr(run_card) == "<run card: listops · linear · noncausal_self · full · seed 0, accuracy 0.365>"
    assert "accuracy (test)" in run_card._repr_html_()
    assert run_card.plot()._repr_png_().startswith(PNG)


def test_what_a_card_says_is_never_markup(run_card):
    hostile = longspan.notebook.CardView(run_card | {"mechanism": "<script>alert(1)</script>"})
    assert "<script>" not in hostile._repr_html_()


def test_cards_are_found_by_their_fields():
    found = longspan.cards(task="listops", mechanism="softmax", cards=CARDS / "listops")
    assert {card.mechanism for card in found} == {"softmax"}


def test_measurements_show_themselves_and_draw(measured):
    view = longspan.notebook.MeasuredView([measured])
    assert repr(view) == "<measurements: linear as causal_self>"
    assert "<table>" in view._repr_html_()
    assert view.plot("train")._repr_png_().startswith(PNG)
    assert measured.plot()._repr_png_().startswith(PNG)


def test_a_plot_of_what_was_not_measured_says_so(measured):
    with pytest.raises(DataMissing, match="decode"):
        longspan.notebook.MeasuredView([measured | {"points": []}]).plot("decode")


def test_run_returns_a_card(tmp_path):
    card = longspan.run("recall", "softmax", overrides={"recipe.steps": 1}, out=tmp_path, progress=False)
    assert card.task == "recall"


@pytest.mark.full
def test_measure_returns_cards(tmp_path):
    view = longspan.measure("softmax", lengths=[16], modes=["forward"], repeats=5, batch=1, heads=1, out=tmp_path)
    assert view.cards[0]["points"][0]["length"] == 16


def test_the_public_names_are_there_and_reading_imports_neither_torch_nor_matplotlib():
    program = f"""
import sys, longspan
view = longspan.board("listops", protocol="longspan", cards={str(CARDS / "listops")!r})
view._repr_html_(), repr(view)
names = ["advise", "analyze", "board", "boards", "card", "cards", "measure", "report", "run"]
assert all(callable(getattr(longspan, name)) for name in names)
assert not {{"torch", "matplotlib", "pandas"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
