"""What the report promises, tested without a browser."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan import published
from longspan.core.errors import StorageError, UsageError
from longspan.report import build as building
from longspan.report import printed
from longspan.report.build import build
from longspan.report.fairness import verdicts_on
from longspan.report.look import HUES, looks
from longspan.report.matrix import matrix
from longspan.report.pages import slug
from longspan.report.templating import paper_link, script_json
from longspan.results.board_table import FREE_NOTE, FREE_TITLE
from longspan.results.store import Store
from tests.report.example import CATALOGUE, CONFORMANCE, HOSTILE, RULES, example_cards, example_evidence, full_cards
from tests.results.factory import make_card, make_measurement

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "site"
    cards = [*example_cards(), *full_cards()]
    return build(cards, out, CATALOGUE, CONFORMANCE, evidence=example_evidence(cards)).parent


def words(page):
    """The text of a page without its tags and without title attributes."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page.read_text(encoding="utf-8"))).split())


def titles(page):
    return [html.unescape(text) for text in re.findall(r'title="([^"]*)"', page.read_text(encoding="utf-8"))]


def section(page, name):
    """The HTML of the section with that id, up to the next one."""
    return re.split(r'<section[^>]*class="panel[" ]', page.read_text(encoding="utf-8").partition(f'id="{name}"')[2])[0]


def test_every_link_between_pages_leads_somewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 8
    for page in pages:
        for target in re.findall(r'(?:href|src)="([^"#]+)"', page.read_text(encoding="utf-8")):
            if not target.startswith(("https://", "data:")):
                assert (page.parent / target).resolve().is_file(), f"{page.name} links to {target}"


def test_every_place_on_a_page_has_one_name_and_links_to_it_arrive(site):
    names = {page: re.findall(r'\bid="([^"]+)"', page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    for page, found in names.items():
        assert len(found) == len(set(found)), page.name
        for target, name in re.findall(r'href="([^"#]*)#([^"?]+)', page.read_text(encoding="utf-8")):
            assert name in names[(page.parent / target).resolve() if target else page], f"{page.name} to {name}"


def test_nothing_is_loaded_from_elsewhere(site):
    for page in [*site.rglob("*.html"), site / "assets" / "site.css", site / "assets" / "site.js"]:
        assert not re.findall(r'(?:src|@import|url\()\s*=?\s*["\']?(?:https?:)?//', page.read_text(encoding="utf-8"))


def test_no_card_text_becomes_markup(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert HOSTILE not in text
        assert "<img src=x" not in text
        assert "<b>not bold" not in text
        assert 'href="javascript:' not in text


def test_the_boards_say_what_was_run_on_what(site):
    text = (site / "board.html").read_text(encoding="utf-8")
    for expected in ("Test CPU", "Stand-in data.", "off the board", "generated", "2.13.0"):
        assert expected in text


def test_a_mechanism_page_has_its_formula_options_promises_and_runs(site):
    text = (site / "mechanism" / "performer.html").read_text(encoding="utf-8")
    for expected in (
        'alttext="y_i = sum_j a_ij v_j"',
        "features",
        "no future leak",
        "changed by 0.1",
        "https://arxiv.org/abs/2009.14794",
    ):
        assert expected in text
    assert text.index("<h1") < text.index("<math") < text.index("<h2>Promises") < text.index("<h2>Runs")
    other = (site / "mechanism" / "never_run.html").read_text(encoding="utf-8")
    assert "Not run yet" in other
    assert "to the next segment" in other  # how its state is carried
    assert "to the next segment" not in text


# ----------------------------------------------------------------------------------------------- the matrix of promises


def verdict(mechanism, pattern, device="cpu", dtype="float32", ok=True):
    promises = [{"promise": "shape", "status": "kept" if ok else "broken", "detail": ""}]
    where = {"device": device, "dtype": dtype, "profile": "full"}
    return {"mechanism": mechanism, "pattern": pattern, **where, "ok": ok, "promises": promises}


def test_the_matrix_has_a_cell_for_each_mechanism_pattern_device_and_precision():
    found = [verdict("local", "noncausal_self"), verdict("local", "causal_self", ok=False)]
    found += [verdict("abc", "causal_cross", "cuda", "bfloat16")]
    made = matrix(found, {"local": ["noncausal_self", "causal_self"]})
    assert made.places == (("cpu", "float32"), ("cuda", "bfloat16"))
    assert made.patterns == ("noncausal_self", "causal_self", "causal_cross")
    assert (made.kept, made.checked) == (2, 3)
    cells = {line.mechanism: line.cells for line in made.rows}
    assert cells["local"]["cpu", "float32", "noncausal_self"].status == "kept"
    assert "1 broken (shape)" in cells["local"]["cpu", "float32", "causal_self"].words
    assert cells["local"]["cpu", "float32", "causal_cross"].status == "undeclared"
    assert cells["local"]["cuda", "bfloat16", "causal_self"].status == "unchecked"
    assert cells["abc"]["cpu", "float32", "causal_self"].status == "unchecked"


def test_the_matrix_is_a_page_that_leads_to_the_promises_of_each(site):
    text = (site / "conformance.html").read_text(encoding="utf-8")
    assert 'href="mechanism/performer.html#promises"' in text
    assert "<b>0</b> of <b>1</b>" in text
    assert "no future leak" in text
    assert 'href="../conformance.html"' in (site / "mechanism" / "performer.html").read_text(encoding="utf-8")


def test_without_a_check_the_matrix_says_what_to_do(tmp_path):
    page = build([], tmp_path / "site").parent / "conformance.html"
    assert "longspan check --all" in page.read_text(encoding="utf-8")


# --------------------------------------------------------------------------------------------------- what was published


@pytest.mark.parametrize("name", published.names("measured"))
def test_measurements_are_shown_as_printed_and_each_flag_is_told_twice(site, name):
    page, table = site / "published.html", published.measured(name)
    text = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", section(page, name))).split())
    for row in table.rows:
        for cell in row.printed.values():
            assert cell in text
        assert row.note in text
    for flag in table.flags():
        assert flag.why in titles(page)
        assert f"{flag.kind} {flag.row}, " in text
        assert f"printed {flag.printed}: {flag.why}." in text


def test_the_gap_is_the_difference_of_what_was_printed(site):
    for row in published.measured("lra-generalisation").rows:
        gap = f"{row.value('train') - row.value('test'):.2f}"
        assert f'data-value="{gap}">{gap}<' in section(site / "published.html", "lra-generalisation")


@pytest.mark.parametrize("name", published.names())
def test_a_leaderboard_ends_with_its_spreads_as_printed_and_recomputed(site, name):
    content = section(site / "published.html", name)
    rows = re.findall(r"Task Avg \(Std\), (\w+)</th>(.*?)</tr>", content, flags=re.DOTALL)
    found = {kind: re.findall(r"\d+ \(\d+\.\d\)", re.sub(r'title="[^"]*"', "", row)) for kind, row in rows}
    table = published.load(name)
    summary = {column: spread for column, spread in table.summary.items() if not isinstance(spread, str)}
    columns = list(summary)
    assert found["printed"] == ["{mean:.0f} ({std:.1f})".format(**spread) for spread in summary.values()]
    assert found["recomputed"][:-1] == ["{:.0f} ({:.1f})".format(*table.spread(column)) for column in columns]
    wrong = any(table.spread_is_wrong(column) for column in columns)
    assert ("the rows give" in dict(rows)["printed"]) == wrong
    text = words(site / "published.html")
    for flag in printed.leaderboard(name).notes:
        assert flag in text


def test_later_records_stand_alone_with_their_deviations(site):
    page, table = site / "published.html", published.load("lra-later")
    content = html.unescape(section(page, "lra-later"))
    assert "Not comparable" in content
    assert table.note in content
    for row in table.rows:
        own = re.split(r'<th scope="row"', content.partition(f'data-value="{row.title}"')[2])[0]
        assert row.source in own
        assert all(f"<li>{deviation}</li>" in own for deviation in row.deviations)
    for board in published.names():
        assert not any(f">{row.title}<" in section(page, board) for row in table.rows)


# ----------------------------------------------------------------------------------------------- boards and their rules


def tables_of(page, name):
    return re.findall(r"<table.*?</table>", section(page, name), flags=re.DOTALL)


def test_a_full_board_shows_the_published_rows_however_few_runs_there_are(tmp_path):
    build([make_card(tier="full")], tmp_path / "site")
    (table,) = tables_of(tmp_path / "site" / "published.html", "beside-lra-longspan-full")
    text = " ".join(re.sub(r"<[^>]*>", " ", table).split())
    for row in published.load("lra-v1").rows:
        assert row.title in text
    assert "Published: LRA leaderboard, version 1" in text
    assert "External entries, not run by the authors" in text
    assert "printed 52 (2.4) †" in text
    assert "vs Transformer +3.62" in text  # 40.00 against 36.38


@pytest.mark.parametrize(
    "how", [{"tier": "lite"}, {"tier": "smoke"}, {"tier": "full", "variant": "standin"}, {"variant": "furniture"}]
)
def test_other_boards_show_no_published_row(tmp_path, how):
    tasks = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
    cards = [make_card(task=task, chance=0.1, **how) for task in tasks]
    boards = build(cards, tmp_path / "site").with_name("board.html")
    assert "Linformer" not in words(boards)
    assert "Long Range Arena" in words(boards)
    assert 'id="beside-' not in boards.with_name("published.html").read_text(encoding="utf-8")


def test_every_substitute_for_the_data_has_a_section_that_names_it(tmp_path):
    runs = {"official": "softmax", "allison": "linear", "faces+photos": "performer", "standin": "local"}
    cards = [make_card(name, variant=kind, tier="lite", title=f"Ran {name}") for kind, name in runs.items()]
    index = build(cards, tmp_path / "site").with_name("board.html")
    for kind, name in list(runs.items())[1:]:
        own = section(index, slug(f"lra-generated-longspan-lite-{kind}"))
        assert set(re.findall(r"Ran (\w+)", own)) == {name}
        assert ("stand-in data" if kind == "standin" else f"{kind} data") in html.unescape(own)
    assert " data" not in section(index, "lra-generated-longspan-lite").partition(">")[2].split("</header>")[0]


def test_the_free_track_has_a_table_of_its_own_without_published_numbers(site):
    ranked, free = tables_of(site / "board.html", "lra-longspan-full")
    assert ">S4<" in free
    assert ">S4<" not in ranked
    for foreign in ("published", "Linformer", "vs ", "Softmax"):
        assert foreign not in free
    text = words(site / "board.html")
    assert FREE_TITLE in text
    assert FREE_NOTE in text


def test_a_task_of_no_suite_has_a_board_of_its_own(site):
    assert len(tables_of(site / "board.html", "text_4k-longspan-full")) == 1
    assert "text_4k" not in section(site / "board.html", "lra-longspan-full")


def test_verdicts_on_the_rules_stand_on_the_page_of_the_mechanism(site):
    text = words(site / "mechanism" / "s4.html")
    for rule, verdict in RULES.items():
        assert rule in text
        assert verdict["finding"] in text
    assert "ListOps breaks a rule" in text
    assert "broken: no spatial information" in titles(site / "mechanism" / "s4.html")
    assert "Rules of the benchmark" not in words(site / "mechanism" / "softmax.html")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kept", "finding", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(ANYTHING)
def test_whatever_a_card_calls_rules_only_verdicts_are_taken(rules):
    for verdict in verdicts_on({"rules": rules}):
        assert rules[verdict.rule]["kept"] is verdict.kept
        assert isinstance(verdict.finding, str)


def test_cards_with_and_without_verdicts_share_a_page(tmp_path):
    cards = [make_card(seed=0), make_card(seed=1, rules=RULES), make_card(seed=2, rules=RULES)]
    build(cards, tmp_path / "site")
    text = words(tmp_path / "site" / "mechanism" / "softmax.html")
    assert "longspan · smoke, seeds 1, 2" in text
    assert "1 older card says nothing about them" in text


# ----------------------------------------------------------------------------------------------------------- efficiency


def test_measurements_stand_above_what_the_paper_prints_of_them(site):
    text = words(site / "efficiency.html")
    assert "Test CPU fp32 batch 32" in text
    assert "Softmax 8 OOM 0.10 OOM Transformer, published 8.1 1.4 0.85 9.48" in text
    assert "Linear 24 (3.00x) 6 0.10 0.40 Linear Trans., published 9.1 (1.1x) 7.8 (5.6x) 0.37 1.03" in text
    assert "Performer at 4K, printed 1.06?: the text calls its memory at 3K and 4K about equal" in text


def test_a_store_brings_its_measurements_along(tmp_path):
    store = Store(tmp_path / "cards")
    store.add(make_measurement("linear", {64: 5.0}))
    build(store, tmp_path / "site")
    assert "Linear 5" in words(tmp_path / "site" / "efficiency.html")
    assert (tmp_path / "site" / "mechanism" / "linear.html").exists()


def test_without_measurements_the_page_says_how_to_make_some(tmp_path):
    build([], tmp_path / "site")
    assert "Nothing measured yet" in words(tmp_path / "site" / "efficiency.html")


# ------------------------------------------------------------------------------------------------------- the whole site


def test_corrupt_cards_are_named(tmp_path):
    store = Store(tmp_path / "cards")
    store.add(make_card())
    (tmp_path / "cards" / "rotten.json").write_text("{")
    build(store, tmp_path / "site")
    assert "rotten.json" in (tmp_path / "site" / "problems.html").read_text(encoding="utf-8")


def test_without_any_card_the_site_still_stands(tmp_path):
    assert "No cards yet" in build([], tmp_path / "site").read_text(encoding="utf-8")


def test_a_build_that_fails_leaves_the_old_site(tmp_path, monkeypatch):
    index = build([make_card()], tmp_path / "site")
    before = index.read_text(encoding="utf-8")

    def fail(folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(building, "_write_assets", fail)
    with pytest.raises(StorageError, match="No space left"):
        build([make_card("linear")], tmp_path / "site")
    assert index.read_text(encoding="utf-8") == before
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_a_new_build_takes_the_place_of_the_old_one(tmp_path):
    build([make_card("softmax")], tmp_path / "site")
    build([make_card("linear")], tmp_path / "site")
    assert [path.name for path in (tmp_path / "site" / "mechanism").iterdir()] == ["linear.html"]


def test_a_folder_with_other_files_is_never_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="no report"):
        build([], tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_a_catalogue_of_another_schema_is_refused(tmp_path):
    with pytest.raises(UsageError, match="schema 2"):
        build([], tmp_path / "site", {"schema": 2})


def test_json_in_a_script_cannot_end_it():
    text = script_json({"name": "</script><!-- & \u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text)["name"] == "</script><!-- & \u2028"


def test_names_of_pages_are_safe_and_differ():
    texts = ["performer", "Performer", "../../etc", "a b", "a_b", "", "x" * 300, "my.py:Mine"]
    names = [slug(text) for text in texts]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9_-]{1,80}", name) for name in names)
    assert names[0] == "performer"


def test_only_papers_and_web_addresses_become_links():
    assert paper_link("arXiv:2009.14794") == "https://arxiv.org/abs/2009.14794"
    assert paper_link("https://example.org/paper") == "https://example.org/paper"
    assert paper_link("javascript:alert(1)") is None
    assert paper_link("NeurIPS 2021") is None


def test_mechanisms_keep_one_look_and_looks_differ():
    names = [f"m{number}" for number in range(3 * HUES)]
    given = looks([*names, "softmax"])
    assert looks(reversed([*names, "softmax"])) == given
    assert len({(look.colour, look.dash) for look in given.values()}) == len(given)
    assert given["softmax"].colour == "--hue-0"


def test_no_page_has_control_characters_of_a_card(tmp_path):
    steers = "\x1b[2J\x07\x9b31m\u202egnp"
    build([make_card(task=steers, protocol=steers, tier=steers)], tmp_path / "site", CATALOGUE)
    pages = list((tmp_path / "site").rglob("*.html"))
    assert not [page.name for page in pages if re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", page.read_text())]


@pytest.mark.parametrize("mechanism", ["\r=1+1", "name\x85", "\x1c", "\x85(a=1)"])
def test_a_mechanism_between_odd_line_breaks_has_a_page(tmp_path, mechanism):
    index = build([make_card(mechanism, title="odd")], tmp_path / "site", CATALOGUE).with_name("board.html")
    (page,) = set(
        re.findall(r'href="(mechanism/[^"]+)"[^>]*>\s*(?:<svg.*?</svg>)?\s*<span>odd', index.read_text(), re.S)
    )
    assert (tmp_path / "site" / page).exists()


READER = """
import sys
sys.modules["torch"] = None
from longspan import published, suites
from longspan.report.build import build
from longspan.results.board import board
from longspan.results.render import FORMS, render
from tests.report.example import CATALOGUE, CONFORMANCE, example_cards
build(example_cards(), sys.argv[1], CATALOGUE, CONFORMANCE)
for form in FORMS:
    render(board(example_cards(), "lra-generated", "longspan", "smoke"), form)
"""


def test_the_reading_half_works_without_torch(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", READER, str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
