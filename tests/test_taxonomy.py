"""Every row of CAB's Table 13 has a mechanism here, and every disagreement with it has a reason."""

import re

import pytest

from docs import make_taxonomy
from longspan import attentions
from longspan.published.taxonomy import CODES, taxonomy

ROWS = taxonomy().rows
REMEDY = "the page is out of date; run: python docs/make_taxonomy.py"


@pytest.fixture
def meta_of(row):
    return attentions.get(row.mechanism).meta


def test_the_table_has_44_rows_of_different_mechanisms_in_four_groups_of_cost():
    assert len(ROWS) == len({row.mechanism for row in ROWS}) == len({row.title for row in ROWS}) == 44
    costs = [row.cost for row in ROWS]
    assert {cost: costs.count(cost) for cost in costs} == {"n^2": 6, "n sqrt n": 3, "n log n": 7, "n": 28}


def test_the_patterns_are_those_that_were_printed():
    assert all("NS" in row.patterns and set(row.patterns) <= set(CODES) for row in ROWS)
    granted = {code: sum(code in row.patterns for row in ROWS) for code in CODES}
    assert granted == {"NS": 44, "CS": 28, "NC": 18, "CC": 16}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.mechanism)
def test_every_row_has_a_mechanism_that_is_ranked(meta_of):
    assert not meta_of.fidelity


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.mechanism)
def test_every_disagreement_has_a_reason_and_every_reason_a_disagreement(row, meta_of):
    assert set(make_taxonomy.disagreements(row, meta_of)) == set(row.reasons)
    assert all(reason[0].islower() and not reason.endswith(".") for reason in row.reasons.values())


def test_there_are_at_least_45_mechanisms_beside_the_twins():
    assert len(make_taxonomy.others(set())) >= 45


def test_a_declaration_that_is_changed_is_noticed():
    row = taxonomy().row("performer")
    assert row.disagreements(family="kernel", cost="n", patterns=("NS", "NC", "CC")) == ()
    assert row.disagreements(family="sparse", cost="n^2", patterns=("NS", "CS", "NC")) == ("family", "cost", "CS", "CC")


def test_a_row_without_a_family_agrees_with_every_family():
    assert taxonomy().row("mca").disagreements(family="anything", cost="n^2", patterns=CODES) == ()


def test_the_committed_page_says_what_the_code_declares():
    assert make_taxonomy.PAGE.read_text() == make_taxonomy.page(), REMEDY


def test_the_page_has_a_line_for_every_row_and_for_every_reason():
    text = make_taxonomy.page()
    lines = re.findall(r"^\| .* \| \[`(\w+)`\]\(mechanisms/\1\.md\) \|", text, re.MULTILINE)
    assert lines == [row.mechanism for row in ROWS]
    assert all(f"| {reason} |" in text for row in ROWS for reason in row.reasons.values())
    assert "`none`" in text  # from CAB's ablation, in no row


def test_check_fails_with_a_sentence_until_the_page_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(make_taxonomy, "page", lambda: "made\n")
    file = tmp_path / "taxonomy.md"
    assert make_taxonomy.main(["--check"], file) == 1
    assert capsys.readouterr().err == "Out of date: taxonomy.md; run: python docs/make_taxonomy.py\n"
    assert make_taxonomy.main([], file) == 0
    assert make_taxonomy.main(["--check"], file) == 0
    assert make_taxonomy.main(["--chekc"], file) == 2
