"""Untrusted text on a card stays text in every format of a board."""

import csv
import io
import json
import re

import pytest

from longspan.results.board import board
from longspan.results.collect import boards
from longspan.results.render import FORMS, render, render_all
from tests.results.factory import make_card

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
STEERS = "\x1b]0;title\x07\x9b2J\u202egnp\r\\input{/etc/passwd}\n\\input{/etc/passwd}"


@pytest.mark.parametrize(
    ("mechanism", "title", "told"),
    [
        ("mine.py:Performer", "Performer", True),  # not the built-in
        ("mine.py:Mine", "Performer", True),
        ("mine.py:Mine", "PER-FORMER", True),
        ("linear", "Softmax", True),
        ("mine.py:Mine", "S\u043eftmax", True),  # with a Cyrillic o
        ("mine.py:Mine", "Nystromformer", True),
        ("mine.py:Mine", "Mine", False),
        ("performer", "Performer", False),
        ("mine.py:Größe", "Grösse", False),
    ],
)
def test_a_title_that_could_be_another_mechanisms_stands_beside_the_mechanism(mechanism, title, told):
    view = board([make_card(mechanism, title=title)], ["listops"], "longspan", "smoke")
    assert (f"[{mechanism}]" in render(view)) is told


def drawn(form):
    return render_all(list(boards([make_card(protocol=STEERS, title=STEERS)], "listops")), form)


@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_a_board_has_control_characters_of_a_card(form):
    assert not CONTROL.search(drawn(form))


def test_a_line_break_cannot_leave_a_latex_comment():
    lines = drawn("latex").splitlines()
    assert any("passwd" in line for line in lines)
    assert not any("\\input" in line for line in lines if not line.startswith("%"))


def test_json_holds_the_very_text_of_the_card():
    assert json.loads(drawn("json"))["protocol"] == STEERS


def test_a_protocol_is_one_cell_of_a_spreadsheet():
    table = list(csv.DictReader(io.StringIO(drawn("csv"))))
    assert all("\n" not in row["protocol"] and row["tier"] == "smoke" for row in table)
