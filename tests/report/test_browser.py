"""What a reader sees: the site in a real browser, from a folder, without a network."""

import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from longspan import analysis
from longspan.analysis import Evidence, gather
from longspan.report import answer
from longspan.report.build import build
from longspan.results.catalogue import SHIPPED, read
from tests.analysis.answers import fill, lab_cards
from tests.report.example import (
    CATALOGUE,
    CONFORMANCE,
    HOSTILE,
    HOSTILE_TITLE,
    example_cards,
    example_evidence,
    full_cards,
)
from tests.report.sample_cards import fill as fill_with_samples
from tests.results.factory import make_core

pytestmark = pytest.mark.browser

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
DRAWN = "[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('.stage svg'))"  # even off screen
PAGES = ["index", "board", "tasks", "task/listops", "questions", "mechanisms", "mechanism/performer", "compare"]
PAGES += ["published", "problems", "docs/index", "docs/api"]
PAGES += [
    "samples/task/point_cloud_completion",
    "samples/task/super_resolution",
    "samples/samples",
    "full/index",
    "full/mechanism/s4",
    "full/efficiency",
    "lab/efficiency",
    "answers/questions",
    "conformance",
]


CROWD = ("softmax", "linear", "performer", "rfa", "local", "longformer", "bigbird", "linformer", "luna", "reformer")
AUDITED = ["index", "mechanism/performer", "compare", "docs/index"]
LONGER = ["board", "tasks", "task/listops", "mechanisms", "published", "lab/efficiency", "answers/questions"]
AUDITED += [pytest.param(name, marks=pytest.mark.full) for name in LONGER]


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
    build(example_cards(), out, CATALOGUE, CONFORMANCE)
    cards = full_cards()
    build(cards, out / "full", CATALOGUE, evidence=example_evidence(cards))
    answers = gather([fill(tmp_path_factory.mktemp("answers") / "cards")])
    build(answers.runs, out / "answers", CATALOGUE, evidence=answers)
    samples = fill_with_samples(tmp_path_factory.mktemp("samples"), HOSTILE, HOSTILE_TITLE)
    build(samples, out / "samples", CATALOGUE | {"tasks": read(SHIPPED)["tasks"]})  # with pictures of every task
    build([], out / "lab", CATALOGUE, evidence=Evidence(measurements=lab_cards("guest", HOSTILE_TITLE)))
    crowd = [make_core(name, {n: 1e-6 * (i + 1) * n for n in (1024, 4096)}) for i, name in enumerate(CROWD)]
    answered = answer.page(analysis.answer("growth", Evidence(measurements=crowd)))
    (out / "crowd.html").write_text(answered, encoding="utf-8")
    return out


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
        page.wait_for_function(DRAWN)
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
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("h1").inner_text()


@pytest.mark.parametrize("name", ["index", "task/listops"])
def test_pages_are_quiet_on_a_desk(open_page, name):
    page = open_page(name)
    page.wait_for_function("[...document.querySelectorAll('.stage')].every((c) => c.querySelector('svg'))")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_a_click_on_a_heading_sorts_both_ways(open_page):
    page = open_page("board")
    heading = page.locator("table.board >> nth=0").get_by_role("button", name="Pathfinder")
    heading.click()
    assert names_in(page)[:3] == ["Performer", "Linear", "Softmax"]
    heading.click()
    assert names_in(page)[:3] == ["Softmax", "Linear", "Performer"]
    assert heading.locator("..").get_attribute("aria-sort") == "ascending"


def test_the_keyboard_sorts_too_and_missing_scores_stay_last(open_page):
    page = open_page("board")
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
    light, dark = open_page("task/listops"), open_page("index", scheme="dark")
    bright, dim = background(light), background(dark)
    assert bright != dim
    light.get_by_role("button", name="Switch between light and dark").click()
    assert background(light) == dim
    light.reload()
    assert background(light) == dim


def test_a_mechanism_keeps_its_colour_on_every_page(open_page):
    swatch = open_page("board").locator("a.name", has_text="Performer").first.locator("svg")
    colour = swatch.evaluate("(element) => getComputedStyle(element).color")
    page = open_page("task/listops")
    key = page.locator("[data-key=learn1] .keys button", has_text="Performer").locator("svg")
    assert key.evaluate("(element) => getComputedStyle(element).color") == colour
    curves = page.locator("[data-key=learn1] g[data-group^=performer] .curve")
    assert set(curves.evaluate_all("(all) => all.map((one) => getComputedStyle(one).stroke)")) == {colour}
    dot = open_page("mechanism/performer").locator("h1 .own")
    assert dot.evaluate("(element) => getComputedStyle(element, '::before').backgroundColor") == colour


def strength(page, group):
    """The opacity of a group's lines, once the transition is over."""
    page.wait_for_timeout(250)
    layers = page.locator(f"[data-key=learn1] g[data-group^='{group}']")
    return max(layers.evaluate_all("(all) => all.map((one) => Number(getComputedStyle(one).opacity))"))


def test_a_figure_has_views_and_a_legend_that_marks_also_after_a_reload(open_page):
    page = open_page("task/listops")
    figure = page.locator("[data-key=learn1]")
    figure.get_by_role("button", name="Loss by step").click()
    assert figure.get_by_text("validation loss").is_visible()
    figure.get_by_role("button", name="Performer").click()
    page.mouse.move(0, 0)
    for _ in range(2):
        assert figure.get_by_role("button", name="Performer").get_attribute("aria-pressed") == "true"
        assert figure.get_by_text("validation loss").is_visible()
        assert strength(page, "performer") == 1.0
        assert strength(page, "softmax") < 0.2
        page.reload()


def test_a_figure_with_one_view_says_of_what_it_is(open_page):
    """Otherwise a reader cannot tell a smoke run from a full run."""
    page = open_page("answers/questions")
    lone = page.evaluate(
        """[...document.querySelectorAll('.plot')].filter((plot) => !plot.querySelector('.views, .choose'))
               .map((plot) => plot.querySelector('.tools .quiet')?.textContent)"""
    )
    assert any("longspan · smoke" in (label or "") for label in lone), lone


def test_a_pointer_near_a_line_names_it_and_dims_the_others(open_page):
    page = open_page("task/listops")
    spot = page.locator("[data-key=learn1] g[data-group^=performer] .curve").first
    spot.scroll_into_view_if_needed()
    end = spot.evaluate(
        """(path) => {
          const point = path.getPointAtLength(path.getTotalLength());
          const frame = path.ownerSVGElement.getBoundingClientRect();
          return [frame.left + point.x, frame.top + point.y];
        }"""
    )
    page.mouse.move(end[0] - 1, end[1] - 1)
    tip = page.locator("[data-key=learn1] .tip")
    assert "Performer" in tip.inner_text()
    box, frame = tip.bounding_box(), page.locator("[data-key=learn1]").bounding_box()
    assert frame["x"] <= box["x"]
    assert box["x"] + box["width"] <= frame["x"] + frame["width"]
    page.mouse.move(2, 2)
    assert tip.is_hidden()


def test_many_lines_can_be_searched_and_drawn_by_family(open_page):
    page = open_page("crowd")
    growth = page.locator("#growth .plot").first
    growth.get_by_role("searchbox").fill("LINEAR")
    assert growth.locator(".keys button").count() == 1
    assert growth.locator("g.strong").count() > 0
    assert growth.locator("g[data-group=softmax].strong").count() == 0
    growth.get_by_role("searchbox").fill("")
    growth.get_by_role("button", name="By family").click()
    families = growth.locator(".multiples figcaption").all_inner_texts()
    assert len(families) > 2
    assert families == sorted(families, key=str.casefold)
    page.reload()
    assert growth.locator(".multiples figcaption").all_inner_texts() == families


def test_filters_leave_what_was_asked_for_and_survive_a_reload(open_page):
    page = open_page("mechanisms")
    items = page.locator(".gallery li:visible strong")
    assert items.count() > 3
    page.get_by_role("searchbox").fill("PERF")
    page.get_by_label("Pattern").select_option("causal_self")
    for _ in range(2):
        assert items.all_inner_texts() == ["Performer"]
        assert "1 of" in page.locator("form.filters output").inner_text()
        page.reload()
    page.get_by_role("button", name="Clear").click()
    page.wait_for_function("document.querySelectorAll('.gallery li:not([hidden])').length > 3")
    assert "?" not in page.url


def test_two_mechanisms_are_compared_by_an_address_that_can_be_sent(open_page, site):
    page = open_page("compare")
    page.locator("select[name=a]").select_option("performer")
    page.locator("select[name=b]").select_option("linear")
    assert page.locator("#compared th .who").all_inner_texts()[:2] == ["Performer", "Linear"]
    assert page.locator("#compared td.better").count() == 2  # each is best on one of the two tasks
    other = open_page("index")
    other.goto(page.url)
    assert other.locator("#compared th .who").all_inner_texts()[:2] == ["Performer", "Linear"]
    assert other.title() == "Performer and Linear · Longspan"
    other.get_by_role("button", name="Swap the two").click()
    assert other.locator("#compared th .who").all_inner_texts()[:2] == ["Linear", "Performer"]


CLIPPED = """(all) => all.flatMap((svg) => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return text.textContent.length < 40 && (box.left < frame.left - 2 || box.right > frame.right + 2);
  }).map((text) => text.textContent);
})"""


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["index", "lab/efficiency", "answers/questions"])
def test_no_label_is_clipped_and_no_legend_is_missing(open_page, name, width):
    page = open_page(name, width=width)
    assert page.locator("svg.chart").evaluate_all(CLIPPED) == []
    lacking = (
        "(all) => all.filter((plot) => !plot.querySelector('.keys button, .point-name, .row-name, .image')).length"
    )
    assert page.locator(".plot").evaluate_all(lacking) == 0


def test_what_is_printed_has_no_tools_and_no_bar(open_page):
    page = open_page("task/listops")
    page.emulate_media(media="print")
    for selector in (".bar", ".tools >> nth=0"):
        assert page.locator(selector).is_hidden()
    assert page.locator(".plot svg.chart").first.is_visible()


AXE = ("axe_playwright_python", "axe_core_python")  # packages that bundle axe-core


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", AUDITED)
def test_axe_finds_no_serious_violation(open_page, name, scheme):
    found = next((spec for package in AXE if (spec := find_spec(package))), None)
    if found is None or found.origin is None:
        pytest.skip("axe-core is not installed; pip install axe-playwright-python brings it.")
    page = open_page(name, scheme=scheme)
    page.evaluate(Path(found.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    violations = page.evaluate("axe.run({ preload: false }).then((result) => result.violations)")
    serious = [
        f"{one['id']}: {node['html'][:160]}"
        for one in violations
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
    assert serious == []


def test_lines_without_names_beside_them_have_a_legend_on_a_desk_too(open_page):
    page = open_page("answers/questions")
    assert page.locator("#extrapolation").get_by_role("button", name="Softmax").is_visible()
    assert page.locator("#tradeoff .keys").is_hidden()


def test_the_rows_of_an_image_are_numbered_beside_it(open_page):
    page = open_page("answers/questions")
    figure = page.locator("#embeddings .plot")
    figure.get_by_role("button", name="positions").click()
    image = figure.locator("g.image image").bounding_box()
    number = figure.locator(".y-tick").first.bounding_box()
    assert number["x"] + number["width"] == pytest.approx(image["x"], abs=20)


def test_wide_tables_scroll_in_their_box_and_keep_names_and_notes_in_sight(open_page):
    page = open_page("published", width=390)
    for name in ("lra-v1", "lra-later", "lra-training-speed"):
        box = page.locator(f"#{name} .scroll")
        assert box.evaluate("(box) => box.scrollWidth > box.clientWidth + 100")
        box.evaluate("(box) => { box.scrollLeft = 100 }")
        assert box.evaluate("(box) => box.scrollLeft") == 100
        frame, heading = box.bounding_box(), box.locator("tbody th.mechanism").first.bounding_box()
        assert heading["x"] == pytest.approx(frame["x"], abs=2)
    note = page.locator("#lra-later .about div").first.bounding_box()
    assert note["x"] >= 0
    assert note["x"] + note["width"] <= 390


def test_what_a_paper_prints_moves_with_its_mechanism(open_page):
    page = open_page("full/efficiency")
    table = page.locator("table").first
    table.get_by_role("button", name="1K").first.click()
    names = [text.split()[0].strip(",") for text in table.locator("tbody th").all_inner_texts()]
    assert names[:6] == ["Linear", "Linear", "Performer", "Performer", "Softmax", "Transformer"]
    assert "published" in table.locator("tbody th").nth(1).inner_text()


def test_the_lab_has_axes_of_logarithms_and_a_roof(open_page):
    page = open_page("lab/efficiency")
    growth = page.locator("#growth .plot").first
    assert growth.locator(".x-tick").all_text_contents() == ["1K", "4K", "8K", "16K", "32K", "64K"]
    growth.get_by_label("Show").select_option(label="Train memory, eager")
    assert growth.get_by_text("memory, MiB").is_visible()
    assert (
        page.locator("#roofline .plot").first.get_by_role("button", name="roof: 4,000 GB/s, 600 TFLOP/s").is_visible()
    )


def test_a_spread_stays_below_the_rows_it_is_about(open_page):
    page = open_page("published")
    table = page.locator("#lra-v1 table")
    for _ in range(2):
        table.get_by_role("button", name="ListOps").click()
        names = table.locator("tbody th.mechanism").all_inner_texts()
        assert names[12:14] == ["Task Avg (Std), printed", "Task Avg (Std), recomputed"]
    assert names[0] == "Chance"


COLOURS = """(items) => items.flatMap((item) => {
    const ground = getComputedStyle(document.body).backgroundColor;
    const tag = getComputedStyle(item.querySelector(".tag"));
    return [[getComputedStyle(item).color, ground], [tag.color, tag.backgroundColor]];
})"""


def contrast(one, other):
    """The WCAG contrast ratio of two colours, from 1 to 21."""

    def luminance(colour):
        shares = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_flags_can_be_read_in_both_themes(open_page, scheme):
    flags = open_page("published", scheme=scheme).locator("#lra-inference-speed .flags li")
    pairs = flags.evaluate_all(COLOURS)
    assert len(pairs) == 14
    assert min(contrast(*pair) for pair in pairs) > 4.5  # what WCAG requires of small text


@pytest.mark.parametrize("name", ["board", "task/listops", "full/efficiency", "lab/efficiency", "mechanisms"])
def test_a_hostile_name_is_text_and_nothing_more(open_page, name):
    page = open_page(name)
    assert page.locator("img[src=x]").count() == 0
    shown = page.locator("main").inner_text()
    assert HOSTILE in shown or HOSTILE_TITLE in shown


def test_tables_have_captions_and_header_cells(open_page):
    page = open_page("board")
    for table in page.locator("table.sortable").all():
        assert table.locator("caption").count() == 1
        assert table.locator("thead th[scope=col]").count() == table.locator("thead th").count()
        assert table.locator("tbody th[scope=row]").count() > 0


def drawn(canvas):
    """The canvas's image, which must not be blank."""
    script = """c => {
      const empty = Object.assign(document.createElement("canvas"), { width: c.width, height: c.height });
      return [c.toDataURL(), empty.toDataURL()];
    }"""
    picture, empty = canvas.evaluate(script)
    assert picture != empty
    return picture


def turned(page, canvas, before):
    page.wait_for_function("([c, yaw]) => c.dataset.yaw !== yaw", arg=[canvas.element_handle(), before])
    return canvas.get_attribute("data-yaw")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_clouds_turn_together_under_the_pointer_and_the_arrow_keys(open_page, scheme):
    page = open_page("samples/samples", scheme=scheme)
    partial, completed, _, other = (page.locator("canvas.cloud").nth(i) for i in (0, 1, 2, 3))
    page.wait_for_function("[...document.querySelectorAll('canvas.cloud')].slice(0, 4).every((c) => c.dataset.yaw)")
    start, first = partial.get_attribute("data-yaw"), drawn(partial)
    page.locator(".three").first.focus()
    page.keyboard.press("ArrowRight")
    by_key = turned(page, partial, start)
    assert drawn(partial) != first
    box = completed.bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 90, box["y"] + 20)
    page.mouse.up()
    by_pointer = turned(page, completed, by_key)
    assert partial.get_attribute("data-yaw") == by_pointer
    assert other.get_attribute("data-yaw") == start  # the next sample is unchanged
    completed.dblclick()
    assert turned(page, completed, by_pointer) == start


def test_clouds_are_drawn_again_in_the_colours_of_the_theme(open_page):
    page = open_page("samples/samples")
    canvas = page.locator("canvas.cloud").first
    page.wait_for_function("document.querySelector('canvas.cloud').dataset.yaw")
    light = drawn(canvas)
    page.locator(".theme").click()
    page.wait_for_function("([c, before]) => c.toDataURL() !== before", arg=[canvas.element_handle(), light])


def test_speech_plays_from_a_folder_and_lasts_as_long_as_the_page_says(open_page):
    page = open_page("samples/samples")
    voices = page.locator("figure.voice")
    assert voices.count() == 2 * (2 + 2 + 1)
    made = voices.first
    assert made.locator("figcaption").inner_text() == "made 1.8 s"
    seconds = made.locator("audio").evaluate(
        "a => new Promise((done, fail) => { a.onloadedmetadata = () => done(a.duration); a.onerror = fail; a.load(); })"
    )
    assert seconds == pytest.approx(1.8, abs=0.01)


def test_every_picture_and_spectrogram_is_there_and_said_in_words(open_page):
    page = open_page("samples/samples")
    images = page.locator("main img")
    assert images.count() == 12 + 10
    for image in images.all():
        image.scroll_into_view_if_needed()
        assert image.evaluate("i => i.decode().then(() => i.naturalWidth)") > 0
        assert image.get_attribute("alt")
    assert page.locator("main img[alt='Picture 1, low']").evaluate("i => i.naturalWidth") == 16
    assert page.locator("main canvas:not([aria-label])").count() == page.locator("audio:not([aria-label])").count() == 0
    assert HOSTILE in page.locator(".words").all_inner_texts()
