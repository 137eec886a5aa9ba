"""What a reader sees: the site in a real browser, from a folder, without a network."""

import os
import shutil

import pytest

from longspan.report.build import build
from tests.report.example import CATALOGUE, CONFORMANCE, HOSTILE, HOSTILE_TITLE, example_cards

pytestmark = pytest.mark.browser

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PAGES = ["index", "curves", "cost", "questions", "mechanisms", "mechanism/performer", "published", "problems"]


@pytest.fixture(scope="module")
def browser():
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        sentence = "No Chromium on this machine; install chromium or google-chrome to test the site."
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=found, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "site"
    return build(example_cards(), out, CATALOGUE, CONFORMANCE).parent


@pytest.fixture
def open_page(browser, site):
    """Opens a page of the site; when the test ends, nothing may have been logged, thrown, popped up or fetched."""
    trouble: list[str] = []
    contexts = []

    def open_(name, *, width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: trouble.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: check(request.url))
        page.goto(f"file://{site}/{name}.html")
        page.wait_for_load_state("load")
        return page

    def check(url):
        if not url.startswith(("file://", "data:")):
            trouble.append(f"request: {url}")

    yield open_
    for context in contexts:
        context.close()
    assert trouble == []


def names_in(page, selector="table.board >> nth=0"):
    return page.locator(selector).locator("tbody >> nth=0").locator("th.mechanism .name span").all_inner_texts()


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_quiet_and_fit_a_phone(open_page, name):
    page = open_page(name, width=390)
    page.wait_for_function("[...document.querySelectorAll('.canvas')].every((c) => c.querySelector('svg'))")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("h1").inner_text()


@pytest.mark.parametrize("name", ["index", "cost"])
def test_pages_are_quiet_on_a_desk(open_page, name):
    page = open_page(name)
    page.wait_for_function("[...document.querySelectorAll('.canvas')].every((c) => c.querySelector('svg'))")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_a_click_on_a_heading_sorts_both_ways(open_page):
    page = open_page("index")
    heading = page.locator("table.board >> nth=0").get_by_role("button", name="Pathfinder")
    heading.click()
    assert names_in(page)[:3] == ["Performer", "Linear", "Softmax"]
    heading.click()
    assert names_in(page)[:3] == ["Softmax", "Linear", "Performer"]
    assert heading.locator("..").get_attribute("aria-sort") == "ascending"


def test_the_keyboard_sorts_too_and_missing_scores_stay_last(open_page):
    page = open_page("index")
    heading = page.locator("table.board >> nth=0").get_by_role("button", name="Mechanism")
    heading.focus()
    page.keyboard.press("Enter")
    by_name = names_in(page)
    assert by_name == sorted(by_name, key=str.casefold)
    page.locator("table.board >> nth=0").get_by_role("button", name="Avg").focus()
    for _ in range(2):
        page.keyboard.press("Space")
        assert names_in(page)[-1] == HOSTILE_TITLE


def test_the_theme_follows_the_system_until_the_reader_chooses(open_page):
    light, dark = open_page("curves"), open_page("index", scheme="dark")
    bright, dim = background(light), background(dark)
    assert bright != dim
    light.get_by_role("button", name="Switch between light and dark").click()
    assert background(light) == dim
    light.reload()
    assert background(light) == dim


def test_a_mechanism_keeps_its_colour_on_every_page(open_page):
    page = open_page("index")
    swatch = page.locator("a.name", has_text="Performer").first.locator("svg")
    colour = swatch.evaluate("(element) => getComputedStyle(element).color")
    page = open_page("curves")
    key = page.locator(".keys button", has_text="Performer").first.locator("svg")
    assert key.evaluate("(element) => getComputedStyle(element).color") == colour
    lines = page.locator(".canvas >> nth=0").locator(".scatterlayer path.js-line")
    assert colour in lines.evaluate_all("(all) => all.map((line) => getComputedStyle(line).stroke)")


def test_a_figure_has_views_and_a_legend_that_hides(open_page):
    page = open_page("curves")
    figure = page.locator(".plot").first
    figure.get_by_role("button", name="Loss by step").click()
    assert figure.get_by_text("validation loss").is_visible()
    before = figure.locator(".scatterlayer .trace").count()
    figure.get_by_role("button", name="Performer").click()
    assert figure.locator(".scatterlayer .trace").count() < before
    assert figure.get_by_role("button", name="Performer").get_attribute("aria-pressed") == "false"


@pytest.mark.parametrize("name", ["index", "curves", "mechanisms", "problems"])
def test_a_hostile_name_is_text_and_nothing_more(open_page, name):
    page = open_page(name)
    assert page.locator("img").count() == 0
    shown = page.locator("main").inner_text()
    assert HOSTILE in shown or HOSTILE_TITLE in shown


def test_tables_have_captions_and_header_cells(open_page):
    page = open_page("index")
    for table in page.locator("table.sortable").all():
        assert table.locator("caption").count() == 1
        assert table.locator("thead th[scope=col]").count() == table.locator("thead th").count()
        assert table.locator("tbody th[scope=row]").count() > 0
