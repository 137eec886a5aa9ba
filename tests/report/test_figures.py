"""Figures of the questions: valid files without URLs, names as text, colours as on the site."""

import html
import json
import math
import re
import struct
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan import analysis
from longspan.analysis import Evidence, gather
from longspan.report import paper_figure
from longspan.report.answer import page, write
from longspan.report.build import asset, build
from longspan.report.figure_json import KINDS, render
from longspan.report.labels import overlap, place_labels
from longspan.report.look import HUES
from longspan.report.marks import Axis, BarMark, Figure, FigureView, LineMark, PointsMark, ReferenceMark, TextMark
from longspan.report.paper_figure import COLOURS, FigureError, canvas, draw, label_points
from longspan.report.question_figures import describe
from tests.analysis.answers import fill

HOSTILE = "<img src=x onerror=alert(1)>$x^2$"


@pytest.fixture(scope="module")
def evidence(tmp_path_factory):
    return gather([fill(tmp_path_factory.mktemp("answers") / "cards")])


@pytest.fixture(scope="module")
def found(evidence):
    return {finding.question: finding for finding in analysis.answers(evidence)}


def chunks(content):
    """The parts of a PNG file; damage raises."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    place = 8
    while place < len(content):
        size, kind = struct.unpack(">I4s", content[place : place + 8])
        data = content[place + 8 : place + 8 + size]
        (check,) = struct.unpack(">I", content[place + 8 + size : place + 12 + size])
        assert check == zlib.crc32(kind + data)
        yield kind, data
        place += 12 + size


TABLES = ("differences", "taxonomy", "settings", "hours", "fastest", "repeat", "speed")  # tables only, nothing to draw
MANY_LABELS = ("correlation", "front", "index", "ranks", "relative", "tradeoff")  # take seconds each
DRAWN = [question for question in analysis.QUESTIONS if question not in TABLES]


@pytest.mark.parametrize(
    "question",
    [pytest.param(one, marks=pytest.mark.full if one in MANY_LABELS else []) for one in DRAWN],
)
def test_every_question_is_drawn_as_a_page_a_pdf_and_a_png(found, tmp_path, question):
    web, pdf, png = write(found[question], tmp_path)
    assert [path.name for path in (web, pdf, png)] == [f"{question}.{suffix}" for suffix in ("html", "pdf", "png")]
    parts = list(chunks(png.read_bytes()))
    width, height = struct.unpack(">II", parts[0][1][:8])
    assert width > 1000
    assert height > 200
    assert parts[-1][0] == b"IEND"
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF-")
    assert content.rstrip().endswith(b"%%EOF")
    assert web.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("question", analysis.QUESTIONS)
def test_a_page_that_stands_alone_loads_nothing(found, question):
    text = page(found[question])
    own = text.replace("http://www.w3.org/2000/svg", "")  # a namespace, not a URL
    assert not re.findall(r"(?:src|href)\s*=\s*[\"'](?!data:)", own)
    assert not re.findall(r"(?:https?:)?//(?=[a-z0-9-]+\.)", re.sub(r"^\s*//.*", "", own, flags=re.MULTILINE))
    assert "@import" not in own
    assert own.count("</script>") == own.count("<script")


def test_the_same_cards_give_the_same_files(found, tmp_path):
    first, second = (draw(found["gap"], tmp_path / name) for name in ("one", "two"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_the_views_are_plain_json_and_every_mark_has_a_kind(found):
    for question, finding in found.items():
        figures = [render(figure) for figure in describe(finding)]
        assert figures or question in TABLES
        for view in (view for figure in json.loads(json.dumps(figures, allow_nan=False)) for view in figure["views"]):
            assert {"label", "x", "y", "marks"} <= set(view)
            assert {mark["kind"] for mark in view["marks"]} <= {*KINDS.values()}
            assert view["marks"]


@pytest.mark.parametrize("value", [0, 0.0, -0.0])
def test_a_zero_is_a_number_and_not_nothing(value):
    marks = [LineMark(x=[value, 1], y=[1, value]), BarMark(x=value, y=0, colour="--hue-1"), TextMark(value, 0, "none")]
    view = render(Figure([FigureView("zeros", [*marks, ReferenceMark("x", value, "softmax")])]))["views"][0]
    line, bar, text, reference = view["marks"]
    assert (line["x"], line["y"]) == ([0, 1], [1, 0])
    assert (bar["x"], bar["y"], text["x"], reference["value"]) == (0, 0, 0, 0)


@given(st.floats())
def test_numbers_of_a_figure_are_numbers_of_json_close_to_what_they_were(value):
    (number,) = render(Figure([FigureView("one", [LineMark(x=[value], y=[0.0])])]))["views"][0]["marks"][0]["x"]
    assert number == pytest.approx(value, rel=1e-4) if math.isfinite(value) else number is None


def test_names_are_text_everywhere(tmp_path):
    folder = fill(tmp_path / "cards", mechanism=f"{HOSTILE}(a=1)")
    evidence = gather([folder])
    for finding in analysis.answers(evidence):
        assert "<img" not in page(finding)
        if finding.question in ("span", "transfer", "decode"):
            assert draw(finding, tmp_path / "drawn")


def test_paper_has_every_colour_of_the_site():
    assert {f"--hue-{hue}" for hue in range(HUES + 1)} | {"--ink", "--quiet", "--line-strong"} <= set(COLOURS)
    style = {colour.strip("#") for colour in COLOURS.values()}
    used = re.findall(r": ([0-9a-f]{6})$", asset("paper.mplstyle"), flags=re.MULTILINE)
    assert used
    assert set(used) <= style


def test_labels_of_points_do_not_cover_one_another():
    views = [view for figure in describe(analysis.answer("tradeoff", Evidence())) for view in figure.views]
    assert views
    with canvas() as pyplot:
        for view in views:
            drawn, axes = pyplot.subplots(figsize=(3.4, 2.9))
            paper_figure.draw_view(axes, view)
            drawn.draw_without_rendering()
            boxes = [label.get_window_extent() for label in label_points(axes, view)]
            pyplot.close(drawn)
            assert len(boxes) == sum(isinstance(mark, PointsMark) for mark in view.marks)
            assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


def test_labels_of_neighbours_go_to_different_sides():
    points, sizes = [(100.0, 50.0), (105.0, 50.0), (900.0, 250.0)], [(60.0, 15.0)] * 3
    (first, _, one), (second, _, other), _ = place_labels(points, [5.0] * 3, sizes, (0.0, 0.0, 1000.0, 300.0))
    assert first != second
    assert overlap(one, other) == 0


@pytest.mark.parametrize("question", [question for question in analysis.QUESTIONS if question not in TABLES])
def test_every_colour_of_a_figure_is_named(found, question):
    """A view of several mechanisms has a legend or labelled points."""
    for view in (view for figure in describe(found[question]) for view in figure.views):
        if view.images or view.labelled:
            continue
        marks = [mark for mark in view.marks if isinstance(mark, LineMark | PointsMark)]
        assert all(mark.name for mark in marks if mark.colour.startswith("--hue"))
        assert any(mark.name for mark in marks)


def drawn_axes(view):
    """The axes of a paper figure with this one view, and the layout of the same view on the site."""
    figure = Figure([view])
    with canvas() as pyplot:
        drawn = paper_figure.render(pyplot, [figure])
        pyplot.close(drawn)
    return drawn.axes[0], render(figure)["views"][0]


def test_rows_of_one_name_stay_two_rows_on_the_site_and_on_paper():
    points = PointsMark(x=[1.0, 2.0], y=[0, 1], colour="--hue-1", name="train")
    axes, view = drawn_axes(FigureView("rows", [points], Axis("x"), Axis(rows=["Softmax", "Softmax"])))
    assert [tick.get_text() for tick in axes.get_yticklabels()] == view["y"]["rows"]
    assert view["marks"][0]["y"] == [0, 1]


def test_axes_have_the_same_scales_and_ticks_on_the_site_and_on_paper():
    line = LineMark(x=[1024.0, 4096.0, 8192.0], y=[1.0, None, 100.0], colour="--hue-1", name="Softmax")
    x, y = Axis("tokens", log=True, ticks={1024: "1K", 8192: "8K"}), Axis("time", log=True)
    axes, view = drawn_axes(FigureView("growth", [line, ReferenceMark("x", 4096, "trained at 4,096")], x, y))
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert view["x"]["log"]
    assert view["y"]["log"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [text for _, text in view["x"]["ticks"]]
    assert view["marks"][0]["y"] == [1, None, 100]
    assert view["marks"][1] == {"kind": "reference", "axis": "x", "value": 4096, "label": "trained at 4,096"}


def test_a_missing_matplotlib_is_one_sentence(found, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(FigureError, match="matplotlib"):
        draw(found["gap"], tmp_path)


def test_the_site_has_a_page_of_questions(evidence, tmp_path):
    site = build(evidence.runs, tmp_path / "site", evidence=evidence).parent
    for finding in analysis.answers(evidence):
        name = "efficiency" if finding.question in analysis.LAB else "questions"
        text = (site / f"{name}.html").read_text(encoding="utf-8")
        assert f'id="{finding.question}"' in text
        assert html.escape(finding.title) in text
        assert f'href="{name}.html" aria-current="page"' in text
