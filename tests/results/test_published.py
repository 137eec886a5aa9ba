"""The published tables: as printed, with their arithmetic checked."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan import published
from longspan.core.errors import UnknownName
from longspan.published import FIVE
from longspan.published.measurement import read_measurement
from longspan.results.published_rows import SUMMARY
from tests.results.frozen_tables import frozen

SIX = (*FIVE, "pathx")
SCORES = [*published.names(), *published.names("later")]
PAPER = Path(__file__).parents[2] / "../shared/papers/lra.txt"
SHORT = {"Transformers": "Transformer", "Sinkhorn Trans": "Sinkhorn Trans.", "Sinkhorn Transformer": "Sinkhorn Trans."}
SHORT |= {"Linear Transformers": "Linear Trans.", "Linear Transformer": "Linear Trans."}
SHORT |= {"Sparse Transformer": "Sparse Trans."}


def as_printed(table):
    """A loaded leaderboard, formatted as the paper prints it."""
    for row in table.rows:
        if row.kind != "external":
            cells = (score if isinstance(score, str) else f"{score:.2f}" for score in row.scores.values())
            yield (row.title, *cells, f"{row.printed_average:.2f}")
    spreads = (s if isinstance(s, str) else f"{s['mean']:.0f} ({s['std']:.1f})" for s in table.summary.values())
    yield (SUMMARY, *spreads)


@pytest.mark.parametrize("name", published.names())
def test_every_row_of_the_leaderboards_is_as_printed(name):
    assert list(as_printed(published.load(name))) == frozen("lra_tables.tsv")[name]


@pytest.mark.parametrize("name", sorted(set(frozen("lra_tables.tsv")) & set(published.names("measured"))))
def test_every_row_of_the_measurements_is_as_printed(name):
    table = published.measured(name)
    assert [(row.title, *row.printed.values()) for row in table.rows] == frozen("lra_tables.tsv")[name]
    assert all(tuple(row.printed) == tuple(column.name for column in table.columns) for row in table.rows)


@pytest.mark.skipif(not PAPER.exists(), reason="the text of the paper is not here")
def test_the_frozen_tables_are_those_of_the_paper():
    text = re.sub(r"</?u>|\$|\\overline\{([\d.]+)\}", r"\1", PAPER.read_text())
    lines = {tuple(cell.strip() for cell in line.split("\t")) for line in text.splitlines() if "\t" in line}
    found = {(SHORT.get(name, name), *(re.sub(r"(?<=\d)\(", " (", c) for c in cells)) for name, *cells in lines}
    for name, rows in frozen("lra_tables.tsv").items():
        assert set(rows) <= found, name


@pytest.mark.parametrize("name", published.names())
def test_exactly_the_known_printed_averages_are_wrong(name):
    table = published.load(name)
    assert {row.title for row in table.rows if row.average_is_wrong} == {"Chance", "Sinkhorn Trans."}


@pytest.mark.parametrize("name, average", [("lra-v0", 51.48), ("lra-v1", 51.58)])
def test_recomputed_averages(name, average):
    table = published.load(name)
    assert round(table.row("Sinkhorn Trans.").average(), 2) == average
    assert round(table.row("Chance").average(), 2) == 34.00


def test_six_tasks_count_fail_as_fifty():
    table = published.load("lra-v0")
    assert round(table.row("Transformer").average(SIX, {"pathx": 50.0}), 2) == 53.66
    assert round(table.row("Chance").average(SIX), 2) == 36.67
    assert table.row("Transformer").average(SIX) is None


def test_version_one_differs_from_version_zero_in_listops_only():
    old, new = published.load("lra-v0"), published.load("lra-v1")
    for row in old.rows:
        other = new.row(row.title)
        assert {task: row.scores[task] for task in SIX[1:]} == {task: other.scores[task] for task in SIX[1:]}


@pytest.mark.parametrize("name", published.names())
@pytest.mark.parametrize("task", FIVE)
def test_the_printed_spread_over_models_is_the_sample_deviation(name, task):
    table = published.load(name)
    mean, std = table.spread(task)
    assert (round(mean), round(std, 1)) == (table.summary[task]["mean"], table.summary[task]["std"])
    assert not table.spread_is_wrong(task)


def test_the_printed_spread_of_the_averages_in_version_one_is_stale():
    assert round(published.load("lra-v0").spread("average")[1], 1) == 2.4
    assert round(published.load("lra-v1").spread("average")[1], 1) == 2.7
    assert published.load("lra-v1").summary["average"]["std"] == 2.4
    assert [published.load(name).spread_is_wrong("average") for name in published.names()] == [False, True]


@pytest.mark.parametrize("name", SCORES)
def test_every_row_names_its_source(name):
    assert all(row.source for row in published.load(name).rows)


@pytest.mark.parametrize("name", published.names())
def test_every_model_of_the_paper_has_its_mechanism_here(name):
    table = published.load(name)
    models = [row for row in table.rows if row.kind == "published"]
    assert len({row.mechanism for row in models}) == 11
    assert table.counterpart("lra_local(window=50)").title == "Local Attention"
    assert table.counterpart("s4d") is None
    assert table.counterpart("mine.py:Mine") is None


# ------------------------------------------------------------------------------------------------------- later records


def test_later_records_say_that_they_do_not_compare_and_why():
    table = published.load("lra-later")
    assert not table.comparable
    assert all(row.kind == "later" and row.deviations and row.paper and row.confirmed for row in table.rows)


def test_later_averages_are_the_means_of_their_scores():
    rows = published.load("lra-later").rows
    assert not [row.title for row in rows if row.average_is_wrong]
    assert {row.printed_over for row in rows} == {5, 6}


# -------------------------------------------------------------------------------------------------------- measurements


def flags(name, kind):
    return {(flag.row, flag.column) for flag in published.measured(name).flags() if flag.kind == kind}


def test_one_printed_ratio_is_plainly_wrong():
    assert flags("lra-inference-speed", "error") == {("Local Attention", "speed_1k")}
    assert flags("lra-training-speed", "error") == set()
    table = published.measured("lra-inference-speed")
    assert table.row("Local Attention").printed_ratio("speed_1k") == 0.47
    assert round(table.ratio("Local Attention", "speed_1k"), 2) == 0.95


def test_ratios_that_only_rounding_explains_are_told_from_errors():
    assert flags("lra-training-speed", "rounding") == {("Linformer", "speed_1k")}
    assert flags("lra-inference-speed", "rounding") == {
        ("Local Attention", "speed_2k"),
        ("Local Attention", "speed_4k"),
        ("Synthesizer", "speed_2k"),
        ("Sinkhorn Trans.", "speed_3k"),
        ("Performer", "speed_4k"),
    }


def test_suspicious_cells_are_named_and_really_are_suspicious():
    table = published.measured("lra-training-speed")
    assert {("Synthesizer", "speed_3k"), ("Linformer", "memory_3k")} <= flags("lra-training-speed", "doubt")
    assert table.row("Synthesizer").value("speed_3k") == table.row("Sinkhorn Trans.").value("speed_3k")
    assert table.row("Synthesizer").value("speed_3k") > table.row("Synthesizer").value("speed_2k")
    assert table.row("Linformer").value("memory_3k") == table.row("Linformer").value("memory_4k")


@given(value=st.integers(1, 999), base=st.integers(1, 999), step=st.integers(1, 400))
def test_a_ratio_is_flagged_exactly_when_it_is_not_the_rounded_quotient(value, base, step):
    def table(ratio):
        rows = [{"title": "base", "printed": {"c": str(base)}}, {"title": "x", "printed": {"c": f"{value} ({ratio}x)"}}]
        words = dict.fromkeys(("name", "title", "suite", "paper", "source", "note"), "made up")
        column = {"name": "c", "title": "c", "quantity": "speed", "unit": "steps/s"}
        return read_measurement({**words, "reference": "base", "columns": [column], "rows": rows})

    assert table(f"{value / base:.2f}").flags() == []
    assert [flag.row for flag in table(f"{value / base + step / 100:.2f}").flags()] == ["x"]


def test_the_test_accuracies_of_the_generalisation_table_are_the_image_scores():
    table, board = published.measured("lra-generalisation"), published.load("lra-v0")
    assert {row.title: row.value("test") for row in table.rows} == {
        row.title: row.scores["image"] for row in board.rows if row.kind == "published"
    }


def test_reference_points_are_marked_as_outside_the_rules():
    table = published.measured("lra-references")
    assert [row.value("image") for row in table.rows] == [89.21, 75.32, 61.72]
    assert all(row.note for row in table.rows)
    assert "outside the rules" in table.title


def test_a_column_is_found_by_quantity_and_length():
    table = published.measured("lra-training-speed")
    assert table.column("memory per device", 4000).name == "memory_4k"
    assert table.column("training speed", 8000) is None
    assert table.counterpart("linear").title == "Linear Trans."


# --------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("ask", [published.load, published.measured, published.names])
def test_an_unknown_table_is_met_with_a_sentence(ask):
    with pytest.raises(UnknownName, match="lra-v2"):
        ask("lra-v2")


def test_an_unknown_table_is_met_with_a_suggestion():
    with pytest.raises(UnknownName, match="Did you mean 'lra-v"):
        published.load("lra-v2")
