"""Figures of the questions: real files, no address in them, names as text, colours as on the site."""

import html
import json
import re
import struct
import sys
import zlib

import pytest

from longspan import analysis
from longspan.analysis import Evidence, gather
from longspan.report import figures, lab, questions
from longspan.report.answer import page, write
from longspan.report.build import asset, build, plotly_source
from longspan.report.plots import HUES, INKS
from tests.analysis.answers import fill

HOSTILE = "<img src=x onerror=alert(1)>$x^2$"


@pytest.fixture(scope="module")
def evidence(tmp_path_factory):
    return gather([fill(tmp_path_factory.mktemp("answers") / "cards")])


@pytest.fixture(scope="module")
def found(evidence):
    return {finding.question: finding for finding in analysis.answers(evidence)}


@pytest.fixture(scope="module")
def drawn(found, tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    return {question: write(finding, folder) for question, finding in found.items()}


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


TABLES = ("fastest", "repeat")  # there is nothing to draw


@pytest.mark.parametrize("question", [question for question in analysis.QUESTIONS if question not in TABLES])
def test_every_question_is_drawn_as_a_page_a_pdf_and_a_png(drawn, question):
    web, pdf, png = drawn[question]
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
    own = text.replace(plotly_source(), "")
    assert len(own) < len(text) - 10**6
    assert not re.findall(r"(?:src|href)\s*=\s*[\"'](?!data:)", own)
    assert not re.findall(r"(?:https?:)?//(?=[a-z0-9-]+\.)", re.sub(r"^\s*//.*", "", own, flags=re.MULTILINE))
    assert "@import" not in own
    assert own.count("</script>") == own.count("<script")


def test_the_same_cards_give_the_same_files(found, tmp_path):
    first, second = (figures.draw(found["gap"], tmp_path / name) for name in ("one", "two"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_the_views_are_plain_json_and_every_trace_can_be_hidden(found):
    for question, finding in found.items():
        panels = lab.panels(finding)
        assert panels or question in TABLES
        for view in (
            view for panel in json.loads(json.dumps(panels, allow_nan=False)) for view in panel["figure"]["views"]
        ):
            assert view["traces"]
            assert all("meta" in trace for trace in view["traces"])
            assert {"label", "x", "y"} <= set(view)


def test_names_are_text_everywhere(tmp_path):
    folder = fill(tmp_path / "cards", mechanism=f"{HOSTILE}(a=1)")
    evidence = gather([folder])
    for finding in analysis.answers(evidence):
        text = page(finding).replace(plotly_source(), "")
        assert "<img" not in text
        figure = json.dumps(lab.panels(finding))
        for trace_name in re.findall(r'"(?:name|text)": "([^"]*)"', figure):
            assert "<" not in html.unescape(trace_name) or "&lt;" in trace_name
        if finding.question in ("span", "transfer", "decode"):
            assert figures.draw(finding, tmp_path / "drawn")


def test_paper_and_site_share_their_colours():
    lights = dict(re.findall(r"--hue-(\d): light-dark\((#[0-9a-f]{6}),", asset("site.css")))
    assert [lights[str(hue)] for hue in range(HUES + 1)] == list(INKS)


def test_labels_of_bubbles_do_not_cover_one_another():
    finding = analysis.answer("tradeoff", Evidence())
    panel = next(panel for panel in finding.figure if panel.label == "published (lra-v1)")
    with figures._canvas() as pyplot:
        figure, axes = pyplot.subplots(figsize=(3.4, 2.9))
        look = figures.looks(questions.mechanisms([finding]))
        figures._bubbles(axes, panel, look, panel.by_speed, "speed", "memory_gb")
        figure.draw_without_rendering()
        labels = figures.label_bubbles(axes, panel.points, "speed", "memory_gb")
        boxes = [label.get_window_extent() for label in labels]
        pyplot.close(figure)
    assert len(boxes) == len(panel.points)
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


def test_a_missing_matplotlib_is_one_sentence(found, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(figures.FigureError, match="matplotlib"):
        figures.draw(found["gap"], tmp_path)


def test_the_site_has_a_page_of_questions(evidence, tmp_path):
    site = build(evidence.runs, tmp_path / "site", evidence=evidence).parent
    for finding in analysis.answers(evidence):
        name = "efficiency" if finding.question in analysis.LAB else "questions"
        text = (site / f"{name}.html").read_text(encoding="utf-8")
        assert f'id="{finding.question}"' in text
        assert html.escape(finding.title) in text
        assert f'href="{name}.html" aria-current="page"' in text
