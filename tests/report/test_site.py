"""What is on the pages besides boards: first the figures, tasks, docs, one colour per mechanism, examples and maps."""

import base64
import importlib.util
import io
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from longspan.analysis import growth
from longspan.analysis.cards import Evidence
from longspan.report import comparison, docs_pages
from longspan.report.attention_maps import maps_of
from longspan.report.build import build
from longspan.report.groups import board_groups
from longspan.report.landing import lanes, standings
from longspan.report.look import looks
from longspan.report.mechanism_pages import cost_figure, mechanism_pages
from longspan.report.task_samples import samples_of
from longspan.results.catalogue import SHIPPED, read
from tests.report.example import CATALOGUE, CONFORMANCE, HOSTILE, example_cards, example_evidence
from tests.results.factory import make_card, make_core

ROOT = Path(__file__).parents[2]
ENTRIES = {entry["name"]: entry for entry in read(SHIPPED)["attentions"]}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    cards = example_cards()
    out = tmp_path_factory.mktemp("report") / "site"
    return build(cards, out, CATALOGUE, CONFORMANCE, evidence=example_evidence(cards)).parent


def text_of(page):
    return page.read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------------------------- the first page


def test_the_first_page_has_pictures_and_says_the_same_in_folded_tables(site):
    """A screen reader cannot see a drawing, so its numbers are one key away; other tables do not appear."""
    index = text_of(site / "index.html")
    assert "Who is good?" in index
    assert "At what cost?" in index
    assert 'class="plot"' in index
    folded = re.findall(r'<details class="numbers">.*?</details>', index, re.DOTALL)
    assert len(folded) == index.count('class="plot"')
    assert all("% on softmax" in part or "tokens" in part or " ms" in part for part in folded)
    assert index.count("<table") == sum(part.count("<table") for part in folded) >= len(folded)


def scored(mechanism, value, metric, higher):
    unit = "percent" if metric == "accuracy" else "plain"
    score = {"name": metric, "split": "test", "value": value, "count": 100, "higher_is_better": higher, "chance": None}
    return make_card(mechanism, "mine.py:Task", score=score | {"unit": unit})


@pytest.mark.parametrize("metric, higher, better", [("accuracy", True, 0.6), ("perplexity", False, 0.5 / 1.2)])
def test_better_than_softmax_is_to_the_right_whichever_way_scores_run(metric, higher, better):
    cards = [scored("softmax", 0.5, metric, higher), scored("linear", better, metric, higher)]
    (group,) = board_groups(cards, ())
    best, softmax = standings(group, "mine.py:Task")
    assert (best.row.mechanism, round(best.gain)) == ("linear", 20)
    assert (softmax.row.mechanism, softmax.gain) == ("softmax", 0.0)


def test_costs_on_a_machine_of_ones_own_are_shown_beside_those_of_the_fullest_bench():
    elsewhere = {"environment": {"cpu": "Own CPU", "gpu": None, "torch": "2.13.0"}}
    measured = [make_core(name) for name in ("softmax", "linear", "local")]
    measured += [make_core(name, variants=("eager",), **elsewhere) for name in ("softmax", "mine.py:Mine")]
    measured += [make_core("mine.py:Mine", {256: 1e-5}, settings={"batch": 1}, **elsewhere)]  # softmax is not there
    findings = [growth.answer(Evidence(measurements=measured))]
    look = looks(["softmax", "linear", "local", "mine.py:Mine"])

    def drawn(name):
        view = cost_figure(name, findings, look)["views"][0]
        return view["label"], sorted(mark["name"] for mark in view["marks"])

    assert drawn("linear") == ("Forward time, noncausal self", ["Linear", "Softmax"])
    assert drawn("mine.py:Mine") == ("Forward time, noncausal self", ["Mine.Py:Mine", "Softmax"])

    benches = [sorted(one["lines"]) for one in comparison.data({}, findings, {}, look)["curves"] if "time" in one["y"]]
    assert ["mine.py:Mine", "softmax"] in benches
    assert ["linear", "local", "softmax"] in benches


def test_of_a_mechanism_from_elsewhere_the_comparison_says_whether_it_keeps_its_promises():
    checked = [{"mechanism": "mine.py:Mine", "promises": [{"promise": "shape", "status": "broken", "detail": ""}]}]
    pages = mechanism_pages([make_card("mine.py:Mine")], [], {}, checked)
    found = comparison.data(pages, [], {}, looks(["mine.py:Mine"]))
    assert found["mechanisms"]["mine.py:Mine"]["facts"]["Promises"] == "1 broken"


def test_without_softmax_nobody_is_compared_with_it():
    (group,) = board_groups([make_card("linear"), make_card("local")], ())
    assert standings(group, "listops") == []


@given(st.lists(st.floats(-100, 100), max_size=40))
def test_points_of_a_row_never_cover_one_another(values):
    found = list(zip(values, lanes(values, 1.0), strict=True))
    assert not any(abs(x - y) < 1.0 and lane == other for i, (x, lane) in enumerate(found) for y, other in found[:i])


# ---------------------------------------------------------------------------------------------- colours, maps, examples


def test_a_mechanism_has_one_colour_whoever_else_is_on_the_site():
    alone, among = looks(["performer(features=64)"]), looks([*ENTRIES, "mine.py:Mine", "performer(features=64)"])
    assert alone["performer(features=64)"].colour == among["performer(features=64)"].colour == among["performer"].colour
    assert among["performer"] != among["performer(features=64)"]  # the same colour, another symbol


def test_members_of_a_family_have_different_colours():
    found = looks(ENTRIES)
    for family in {entry["family"] for entry in ENTRIES.values()}:
        names = [name for name, one in ENTRIES.items() if one["family"] == family and not one["fidelity"]]
        assert len({found[name].colour for name in names}) == len(names), family


def picture(mechanism, pattern):
    """The opacities of the map: queries down, keys across."""
    content = base64.b64decode(maps_of(mechanism)[pattern].partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGBA"))[..., 3]


@pytest.mark.parametrize("name", ENTRIES)
def test_every_mechanism_has_a_picture_in_every_pattern_and_causal_ones_are_triangles(name):
    assert set(maps_of(name)) == set(ENTRIES[name]["patterns"])
    for pattern in ENTRIES[name]["patterns"]:
        drawn = picture(name, pattern)
        assert drawn.shape == (64, 64)
        assert drawn.any() == (name != "none")
        if pattern == "causal_self" and not ENTRIES[name]["fidelity"]:  # released code may leak, as its map shows
            assert not np.triu(drawn, 1).any()


def test_a_window_is_a_band_and_softmax_sees_everything():
    rows, columns = np.nonzero(picture("local", "noncausal_self"))
    assert np.abs(rows - columns).max() <= 1
    assert (picture("softmax", "noncausal_self") > 0).mean() > 0.9


def test_every_task_has_examples_and_its_page_shows_them(site):
    assert all(samples_of(task["name"]) for task in read(SHIPPED)["tasks"])
    page = text_of(site / "task" / "listops.html")
    assert "[MIN " in page or "[MAX " in page
    assert page.index("What it looks like") < page.index("Who solves it") < page.index("What it demands")


# -------------------------------------------------------------------------------------------- boards, published results


def test_a_board_has_no_column_that_nobody_ran_and_says_so(tmp_path):
    build([make_card(name, tier="full") for name in ("softmax", "linear")], tmp_path / "site")
    board = text_of(tmp_path / "site" / "board.html")
    table = re.search(r"<table.*?</table>", board, re.S)[0]
    assert "ListOps" in table
    assert "Retrieval" not in table
    assert "Avg 5" not in table
    assert "Not run: Text, Retrieval, Image, Pathfinder, Path-X." in board
    assert "Avg 5:" not in board
    assert "published.html#beside-lra-longspan-full" in board
    assert "Linformer" not in board


def test_promises_are_folded_unless_one_is_broken(site, tmp_path):
    assert "<details open><summary>1 of 2 promises kept" in text_of(site / "mechanism" / "performer.html")
    kept = [CONFORMANCE[0] | {"ok": True, "promises": CONFORMANCE[0]["promises"][:1]}]
    build([], tmp_path / "site", CATALOGUE, kept)
    assert "<details><summary>1 of 1 promises kept" in text_of(tmp_path / "site" / "mechanism" / "performer.html")


# ---------------------------------------------------------------------------------------------------- the documentation


def test_the_documentation_is_part_of_the_site_and_its_links_arrive(site):
    books = docs_pages.books(docs_pages.FOLDER)
    assert {"index", "api", "add-a-mechanism"} <= {book.name for book in books}
    for book in books:
        page = text_of(site / book.page)
        assert f'href="../{book.page}" aria-current="page"' in page
        assert "--8&lt;--" not in page
        assert "<p>:::" not in page
    assert 'href="../mechanism/performer.html"' in text_of(site / "docs" / "taxonomy.html")


def test_a_link_to_what_the_site_has_not_is_text():
    book = docs_pages.Book(
        "one", "Use", "One", docs_pages.rendered("[a](mechanisms/abc.md) [b](../x.py) [c](two.md#p)", str)
    )
    (made,) = docs_pages.linked([book], [], str)
    assert made.html == "<p><span>a</span> <span>b</span> <span>c</span></p>\n"


def test_markdown_cannot_bring_markup():
    made = docs_pages.rendered(f"{HOSTILE}\n\n[x](javascript:alert(1))", str)
    assert "<script" not in made
    assert 'href="javascript' not in made


def test_the_reference_names_signatures_and_docstrings_without_importing():
    made = docs_pages.rendered("::: longspan.report.landing.lanes", str)
    assert "def lanes(values: Sequence[float], near: float)" in made
    assert "Steps up or down for points of a row" in made


@pytest.mark.parametrize("page, picture", [("README.md", "docs/overview.svg"), ("docs/index.md", "overview.svg")])
def test_readme_and_docs_open_with_the_picture_of_the_cards(page, picture):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.index(f"]({picture})") < text.index("```")
    assert (ROOT / page).parent.joinpath(picture).read_text(encoding="utf-8").startswith("<?xml")


# -------------------------------------------------------------------------------------------------- the committed cards


@pytest.mark.full
def test_the_picture_names_what_the_committed_cards_have():
    spec = importlib.util.spec_from_file_location("make_overview", ROOT / "docs" / "make_overview.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(["--check"]) == 0


@pytest.mark.full
def test_scripts_and_data_of_the_committed_results_are_under_three_megabytes(tmp_path):
    from longspan import analysis
    from longspan.results import collect

    folders = [ROOT / "results" / "h200" / "cards"]
    found, evidence = collect.cards_in(folders), analysis.gather(folders)
    site = build(found.cards, tmp_path / "site", read(SHIPPED), evidence=evidence).parent
    scripts = sum(path.stat().st_size for path in (site / "assets").iterdir())
    inline = [re.findall(r"<script[^>]*>(.*?)</script>", text_of(page), re.S) for page in site.rglob("*.html")]
    assert scripts + sum(len(text) for page in inline for text in page) < 3 * 2**20
