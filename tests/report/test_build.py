"""What the report promises before any browser opens it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from longspan.core.errors import StorageError, UsageError
from longspan.report import build as building
from longspan.report.build import ReportError, build, paper_link, script_json, slug
from longspan.report.plots import HUES, label_places, looks
from longspan.results.store import Store
from tests.report.example import CATALOGUE, CONFORMANCE, HOSTILE, example_cards
from tests.results.factory import make_card

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "site"
    return build(example_cards(), out, CATALOGUE, CONFORMANCE).parent


def test_every_link_between_pages_leads_somewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 8
    for page in pages:
        for target in re.findall(r'(?:href|src)="([^"#]+)"', page.read_text(encoding="utf-8")):
            if not target.startswith(("https://arxiv.org/", "data:")):
                assert (page.parent / target).resolve().is_file(), f"{page.name} links to {target}"


def test_nothing_is_loaded_from_elsewhere(site):
    for page in [*site.rglob("*.html"), site / "assets" / "site.css", site / "assets" / "site.js"]:
        assert not re.findall(r'(?:src|@import|url\()\s*=?\s*["\']?(?:https?:)?//', page.read_text(encoding="utf-8"))


def test_no_card_text_becomes_markup(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert HOSTILE not in text
        assert "<img" not in text
        assert "<b>not bold" not in text
        assert 'href="javascript:' not in text


def test_the_index_says_what_was_run_on_what(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    for expected in ("Test CPU", "Stand-in data.", "off the board", "generated", "2.13.0"):
        assert expected in text


def test_a_mechanism_page_has_its_formula_options_promises_and_runs(site):
    text = (site / "mechanism" / "performer.html").read_text(encoding="utf-8")
    for expected in (
        "y_i = sum_j a_ij v_j",
        "features",
        "no future leak",
        "changed by 0.1",
        "https://arxiv.org/abs/2009.14794",
    ):
        assert expected in text
    assert text.index("<h1") < text.index("<pre") < text.index("<h2>Promises") < text.index("<h2>Runs")
    assert "Not run yet" in (site / "mechanism" / "never_run.html").read_text(encoding="utf-8")


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


def test_a_missing_plotly_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ReportError, match="plotly"):
        build([], tmp_path / "site")
    assert not list(tmp_path.iterdir())


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


def test_labels_of_neighbours_go_to_different_sides():
    places = label_places([(1.0, 1.0), (1.01, 1.0), (5.0, 5.0)], ["Performer", "cosFormer", "far"])
    assert places[0] != places[1]


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
    render(board(example_cards(), "starter", "longspan", "smoke"), form)
"""


def test_the_reading_half_works_without_torch(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", READER, str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
