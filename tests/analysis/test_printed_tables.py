"""Tables of CAB without scores: options, sizes, taxonomy and hours, and which of their cells cannot be right."""

import pytest

from longspan import analysis
from longspan.analysis import Evidence
from longspan.analysis.settings import here
from longspan.published.printed_settings import printed_settings
from longspan.published.sizes import sizes
from longspan.results import catalogue
from longspan.results.card import seal
from tests.results.factory import make_card

CONTENT = catalogue.read(catalogue.SHIPPED)
TASKS, MECHANISMS = ({entry["name"]: entry for entry in CONTENT[kind]} for kind in ("tasks", "attentions"))


@pytest.mark.parametrize("cell", printed_settings(), ids=lambda cell: f"{cell.table}-{cell.row}-{cell.column}")
def test_a_printed_cell_runs_here_or_has_a_reason_and_never_both(cell):
    ours = here(cell, TASKS, MECHANISMS)
    assert (ours in (None, cell.printed)) == (not cell.reason)
    assert not cell.reason.endswith(".")


def test_tables_5_and_14_are_whole():
    tables = [cell.table for cell in printed_settings()]
    assert {name: tables.count(name) for name in tables} == {"5a": 44, "5b": 12, "5c": 4, "5d": 4, "14": 50}


def test_the_five_misprints_are_found_and_told():
    notes = analysis.answer("settings", Evidence()).notes
    assert notes[0] == "5 of 114 printed cells are not what runs here."
    assert any(note.startswith("Table 14, Tr-TTS, # attention heads: 8 is printed, 4 runs here") for note in notes)


def test_where_a_size_disagrees_the_printed_counts_are_those_of_ours():
    """The reason given for every misprint of Table 14: counts derived from our sizes round to the printed ones."""
    wrong = {task for cell in printed_settings() if cell.reason for task in cell.tasks}
    counted = [size for size in sizes() if size.task in wrong]
    assert {size.task for size in counted} == wrong
    assert all(size.reads_as_printed(size.derived) for size in counted)


def test_the_taxonomy_counts_what_is_unlike_the_paper_as_the_page_does():
    finding = analysis.answer("taxonomy", Evidence())
    assert len(finding.rows) == 44
    titles = [column.title for column in finding.columns]
    rows = [dict(zip(titles, row, strict=True)) for row in finding.rows]
    differing = [row for row in rows if row["Differs in"] != "–"]
    assert all(row["Why"] != "–" for row in differing)
    cells = sum(len(row["Differs in"].split(", ")) for row in differing)
    assert finding.notes[0].startswith(f"{cells} cells of {len(differing)}")


def test_hours_are_of_runs_that_had_their_device_alone_and_stand_apart_by_rules():
    shared = make_card("linear", seed=1, sealed=False)
    shared["timing"] |= {"shared": 2, "wall_seconds": 9999.0}
    runs = [make_card(), make_card(seed=1), make_card(tier="full"), seal(shared)]
    rows = [row for row in analysis.answer("hours", Evidence(runs=runs)).rows if row[1] != "published"]
    assert [(row[1], row[3], row[6]) for row in rows] == [
        ("longspan · full", pytest.approx(50 / 3600), 1),
        ("longspan · smoke", pytest.approx(50 / 3600), 2),
    ]
