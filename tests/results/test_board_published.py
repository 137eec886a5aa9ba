"""A board beside a paper: printed numbers exact, printed errors flagged, only comparable results side by side."""

import csv
import html
import io
import json
import re
from html.parser import HTMLParser

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from longspan import published
from longspan.cli import app
from longspan.core.errors import UsageError
from longspan.results import collect
from longspan.results.board import board
from longspan.results.render import FORMS, render, render_all
from longspan.results.snapshot import freeze
from tests.results.factory import make_card

TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
CHANCE = {"listops": 0.163, "image": 0.1}
TABLES = ["lra-v0", "lra-v1"]
WRITTEN = [form for form in FORMS if form not in ("terminal", "json", "csv")]


def lra_cards(mechanism="softmax", scores=(0.36, 0.64, 0.57, 0.42, 0.71, 0.51), **fields):
    fields = {"tier": "full"} | fields
    return [
        make_card(mechanism, task, accuracy=score, chance=CHANCE.get(task, 0.5), **fields)
        for task, score in zip(TASKS, scores, strict=False)
    ]


def lra(cards=(), table="lra-v1"):
    return board(cards, "lra", "longspan", "full", published=table)


def printed_cells(table):
    """Title and printed scores of every row, and the printed average."""
    for row in table.rows:
        scores = [score if isinstance(score, str) else f"{score:.2f}" for score in row.scores.values()]
        yield row.title, scores, f"{row.printed_average:.2f}"


def words(text):
    """A rendering without its markup, to compare what a reader sees."""
    return re.sub(r"<[^>]+>|[|&\\]", " ", html.unescape(text))


# ------------------------------------------------------------------------------------------------ exact in every form


@pytest.mark.parametrize("table", [*TABLES, "lra-later"])
@pytest.mark.parametrize("form", [*WRITTEN, "terminal"])
def test_every_printed_score_is_shown_in_its_row(form, table):
    shown = [line.split() for line in words(render(lra(table=table), form)).replace("<tr", "\n").splitlines()]
    if form == "html":
        shown = [words(row).split() for row in re.findall(r"<tr.*?</tr>", render(lra(table=table), form))]
    for title, scores, _ in printed_cells(published.load(table)):
        start = [*title.split(), *scores]
        assert any(line[: len(start)] == start for line in shown), (title, form)


@pytest.mark.parametrize("table", [*TABLES, "lra-later"])
def test_csv_reads_back_as_the_printed_numbers(table):
    lines = list(csv.DictReader(io.StringIO(render(lra(table=table), "csv"))))
    rows = {(line["title"], line["column"]): line for line in lines}
    for row in published.load(table).rows:
        for task, score in row.scores.items():
            line = rows[row.title, task]
            if isinstance(score, str):
                assert (line["printed"], line["value"], line["status"]) == (score, "", score.lower())
            else:
                assert float(line["printed"]) == score
                assert float(line["value"]) == score / 100 or abs(float(line["value"]) - score / 100) < 1e-15
        average = rows[row.title, "avg5" if row.printed_over == 5 else "avg6"]
        assert float(average["printed"]) == row.printed_average
        assert float(average["value"]) == pytest.approx(row.recomputed_average / 100)
        assert ("printed as" in average["note"]) == row.average_is_wrong


@pytest.mark.parametrize("table", [*TABLES, "lra-later"])
def test_json_reads_back_as_the_printed_numbers(table):
    content = json.loads(render(lra(table=table), "json"))
    for row, source in zip(content["published"], published.load(table).rows, strict=True):
        assert row["title"] == source.title
        assert {t: s if isinstance(s, str) else round(100 * s, 9) for t, s in row["scores"].items()} == source.scores
        assert round(100 * row["printed_average"], 9) == source.printed_average
        assert row["average_is_wrong"] == source.average_is_wrong
        assert tuple(row["deviations"]) == source.deviations


@pytest.mark.parametrize("form", WRITTEN)
def test_the_spread_over_models_is_shown_as_printed(form):
    text = " ".join(words(render(lra(table="lra-v0"), form)).split())
    assert "Task Avg (Std) 29 (9.7) 61 (4.6) 55 (2.6) 41 (1.8) 72 (3.7) FAIL 52 (2.4)" in text


# ------------------------------------------------------------------------------------------------------ printed errors

KNOWN = {
    "lra-v0": ("34.00 (printed 44.00)", "51.48 (printed 51.39; elsewhere 51.29)"),
    "lra-v1": ("34.00 (printed 44.00)", "51.58 (printed 52.78)", "52 (2.7), printed 52 (2.4)"),
}


@pytest.mark.parametrize("table, form", [(table, form) for table in TABLES for form in WRITTEN])
def test_printed_errors_stand_beside_the_recomputed_values(table, form):
    text = render(lra(table=table), form)
    assert all(error in text for error in KNOWN[table])


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_what_is_printed_wrongly(form, table):
    text = words(render(lra(table=table), form, width=300))
    flags = lra(table=table).paper.flags
    assert len(flags) == len(KNOWN[table])
    assert all(words(flag) in text for flag in flags)


def test_the_terminal_marks_a_printed_error_in_its_cell():
    text = render(lra(), "terminal")
    assert all(marked in text for marked in ("34.00†", "51.58†", "52 (2.7)†"))
    assert text.count("†") == 6  # three marks, explained three times


# ------------------------------------------------------------------------------------------------- own runs beside it


def test_own_runs_stand_beside_the_published_row_of_the_same_attention():
    view = lra([*lra_cards("softmax"), *lra_cards("linear", (0.2,))])
    softmax, linear = view.rows
    assert (softmax.counterpart, linear.counterpart) == ("Transformer", "Linear Trans.")
    assert softmax.differences["listops"] == pytest.approx(0.36 - 0.3638)
    assert softmax.differences["avg5"] == pytest.approx(0.54 - 0.5439)
    assert "pathx" not in softmax.differences  # two FAILs have no difference
    assert set(linear.differences) == {"listops"}
    assert "vs Linear Trans." in render(view)
    assert "+2.85" in render(view)


def test_a_causal_run_and_one_that_the_paper_lacks_have_no_counterpart():
    for cards in (lra_cards("s4d"), lra_cards("linear", pattern="causal_self")):
        assert [row.counterpart for row in lra(cards).rows] == [None]


def test_two_own_runs_have_a_mean_and_a_sample_deviation_and_one_has_none():
    two = lra([*lra_cards("softmax"), *lra_cards("linear", (0.2, 0.6, 0.55, 0.4, 0.7, 0.51))])
    assert two.summary["listops"].mean == pytest.approx(0.28)
    assert two.summary["listops"].std == pytest.approx(0.08 * 2**0.5)
    assert "pathx" not in two.summary
    assert render(two, "md").count("Task Avg (Std) |") == 2
    assert lra(lra_cards()).summary == {}
    assert render(lra(lra_cards()), "md").count("Task Avg (Std) |") == 1


@pytest.mark.parametrize("form", WRITTEN)
def test_the_free_track_stands_apart_and_says_why(form):
    text = render(lra([*lra_cards("softmax"), *lra_cards("tuned", track="free")]), form)
    assert text.index("Softmax") < text.index("IGLOO") < text.index("Free track") < text.index("Tuned")
    assert "forbid quoting published numbers beside it" in text
    tables = re.split("Free track", text)
    assert "Transformer" in tables[0]
    assert "Longformer" not in tables[1]


def test_a_free_run_is_never_measured_against_the_paper():
    view = lra(lra_cards("softmax", track="free"))
    assert view.free[0].counterpart is None
    assert "vs Transformer" not in render(view)


def test_later_records_stand_apart_with_what_they_did_otherwise():
    view = lra(lra_cards("softmax"), "lra-later")
    text = render(view, "md")
    own, later = text.split("## Later records, not comparable")
    assert "Softmax" in own
    assert "S5" not in own
    assert "Softmax" not in later.split("\n- ")[0]
    assert "characters, not bytes" in text
    assert "continuous" in text
    assert not view.rows[0].differences


# --------------------------------------------------------------------------------------------------------- the screen


def boards_of_all_kinds():
    many = [card for seed in (0, 1, 2) for card in lra_cards("softmax", seed=seed, title="Softmax")]
    wordy = lra_cards("performer(features=64, kernel='relu')", title="Performer with a very long name indeed")
    return [lra(), lra(many), lra([*many, *wordy, *lra_cards("tuned", track="free")]), lra(many, "lra-later")]


@pytest.mark.parametrize("width", [80, 81, 100, 120, 160, 250])
@pytest.mark.parametrize("view", boards_of_all_kinds(), ids=["paper", "own", "all", "later"])
def test_tables_fit_their_screen_with_every_name_and_number_whole(view, width):
    text = render(view, "terminal", width=width)
    assert all(cell_len(line.rstrip()) <= width for line in text.splitlines())
    assert "…" not in text
    for heading in ("ListOps", "Text", "Retrieval", "Image", "Pathfinder", "Path-X", "Avg 5"):
        assert heading in text
    for row in view.published:
        numbers = [s if isinstance(s, str) else f"{100 * s:.2f}" for s in row.scores.values()]
        assert any(line.split()[-8:][:6] == numbers or numbers == line.split()[-7:][:6] for line in text.splitlines())


def test_what_the_width_leaves_out_is_named():
    view = boards_of_all_kinds()[1]
    assert "Left out at this width: Seeds, Steps/s, Parameters" in render(view, width=80)
    assert "Left out" not in render(view, width=200)


# ----------------------------------------------------------------------------------------------------- sound documents


@pytest.mark.parametrize("view", boards_of_all_kinds(), ids=["paper", "own", "all", "later"])
def test_latex_is_balanced_and_every_row_has_every_column(view):
    text = "\n".join(line for line in render(view, "latex").splitlines() if not line.startswith("%"))
    for table in re.findall(r"\\begin{tabular}{(\w+)}\n(.*?)\\end{tabular}", text, re.DOTALL):
        columns, body = table
        rows = [line for line in body.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
        assert rows
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(columns) - 1}
    bare = re.sub(r"\\[\\{}&%$#_]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert not re.search(r"[%#_~^●±°†]", bare.replace("$^\\", "$\\"))


class Nesting(HTMLParser):
    """Tracks open elements; void elements are skipped."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("view", boards_of_all_kinds(), ids=["paper", "own", "all", "later"])
def test_html_is_nested_soundly(view):
    parser = Nesting()
    parser.feed(render(view, "html"))
    assert parser.open == []


def test_several_boards_make_one_document():
    views = [lra(), lra(table="lra-v0")]
    assert render_all(views, "html").count("<html") == 1
    assert render_all(views, "csv").count("suite,protocol") == 1
    assert [content["paper"]["name"] for content in json.loads(render_all(views, "json"))] == ["lra-v1", "lra-v0"]
    assert json.loads(render(lra(), "json"))["paper"]["name"] == "lra-v1"


def test_md_is_short_for_markdown():
    assert render(lra(), "md") == render(lra(), "markdown")


# ----------------------------------------------------------------------------------------------------------- choosing


def call(*args):
    return CliRunner().invoke(app, ["board", *args])


@pytest.mark.parametrize("asked, title", [("v0", "version 0"), ("lra-v1", "version 1"), ("later", "Later records")])
def test_a_published_table_needs_no_cards(asked, title, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("lra", "--published", asked)
    assert result.exit_code == 0, result.output
    assert title in result.stdout
    assert "No runs of lra" in result.stdout


def test_version_one_is_shown_unless_another_is_asked_for():
    assert [view.paper.name for view in collect.boards([], "lra")] == ["lra-v1"]
    assert [view.paper.name for view in collect.boards([], "lra", published="v0")] == ["lra-v0"]
    assert list(collect.boards([], "lra", published="none")) == []


def test_published_rows_stand_beside_full_runs_on_real_data_only():
    cards = [*lra_cards(), *lra_cards(tier="smoke"), *lra_cards(variant="standin")]
    views = list(collect.boards(cards, "lra"))
    assert [(view.tier, view.standin, view.paper is not None) for view in views] == [
        ("smoke", False, False),
        ("full", False, True),
        ("full", True, False),
    ]
    assert [view.tier for view in collect.boards(cards, "lra", published="v0")] == ["full"]
    with pytest.raises(UsageError, match="beside full runs"):
        list(collect.boards(cards, "lra", tier="smoke", published="v0"))


@pytest.mark.parametrize("suite, asked", [("lra", "v2"), ("starter", "v1"), ("listops", "v1")])
def test_a_table_that_does_not_exist_is_refused_in_a_sentence(suite, asked):
    with pytest.raises(UsageError, match=asked):
        list(collect.boards([], suite, published=asked))


def test_a_suite_without_published_rows_and_without_cards_says_how_to_make_some(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("starter")
    assert result.exit_code == 3
    assert "longspan run starter" in result.stderr


def test_a_snapshot_keeps_the_published_rows(tmp_path):
    content = json.loads(freeze(lra(table="lra-v0"), "paper", tmp_path).read_text())
    assert content["paper"]["name"] == "lra-v0"
    assert content["paper"]["summary"]["listops"]["printed"] == "29 (9.7)"
    assert len(content["published"]) == 12
