"""The table of speed and memory: ratios from the right points, published numbers as printed, all formats equal."""

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.analysis.efficiency_table import FORMS, footnotes, grid, memory_text, render, speed_text
from longspan.analysis.lra_efficiency import tables
from longspan.core.errors import UnknownName
from longspan.published import measured
from longspan.results.card import Card, seal, validate

SETTINGS = {"device": "cuda", "precision": "bf16", "batch": 32, "compile": False, "memory": "allocator"}
SETTINGS |= {"compute_clock": "device events", "model": {"layers": 4, "heads": 8, "dim": 128, "mlp": 512}}


def point(length, mode="train", speed: float | None = 1.0, *, compute=None, peak=None, status="ok", reason=None):
    return {
        "length": length,
        "mode": mode,
        "status": status,
        "reason": reason,
        "steps_per_second": speed,
        "compute_steps_per_second": compute or speed,
        "examples_per_second": speed and 32 * speed,
        "peak_bytes": peak,
    }


def card(mechanism, points, *, gpu="Test GPU", created="2026-01-02T03:04:05Z", title=None, **settings) -> Card:
    """A measurement card; every number in it is made up."""
    made = {
        "schema": 1,
        "kind": "measurement",
        "procedure": "lra-efficiency",
        "mechanism": mechanism,
        "title": title or mechanism.split("(")[0].title(),
        "pattern": "noncausal_self",
        "settings": SETTINGS | {"lengths": sorted({p["length"] for p in points})} | settings,
        "points": points,
        "parameters": {"total": 1000},
        "code": {"version": "0", "commit": None, "dirty": None},
        "environment": {"gpu": gpu, "cpu": "Test CPU"},
        "files": {},
        "created": created,
    }
    validate(seal(made))
    return seal(made)


SOFTMAX = card("softmax", [point(1000, speed=8.0, compute=10.0, peak=2_000_000_000), point(4000, speed=1.0)])
LINEAR = card("linear", [point(1000, speed=6.0, compute=15.0, peak=500_000_000), point(4000, speed=5.0)])
OOM = point(4000, speed=None, status="oom", reason="out of memory on cuda with 32 rows of length 4000")


def rows_of(view, source="own"):
    return {row.mechanism: row for row in view.rows if row.source == source}


def test_a_ratio_is_to_softmax_at_the_same_length_by_the_same_clock():
    (view,) = tables([LINEAR, SOFTMAX])
    assert next(iter(rows_of(view))) == "softmax"
    cells = rows_of(view)["linear"].cells
    assert (cells[1000].ratio, cells[1000].compute_ratio, cells[4000].ratio) == (0.75, 1.5, 5.0)
    assert rows_of(view)["softmax"].cells[1000].ratio is None
    assert speed_text(cells[1000]) == "6 (0.75x)"
    assert speed_text(cells[1000], "compute") == "15 (1.50x)"
    assert memory_text(cells[1000]) == "0.50"


@given(st.dictionaries(st.integers(1, 9), st.tuples(st.floats(0.1, 1e4), st.floats(0.1, 1e4)), min_size=1))
def test_ratios_follow_from_any_speeds(speeds):
    softmax = card("softmax", [point(n, speed=base) for n, (base, _) in speeds.items()])
    other = card("linear", [point(n, speed=own) for n, (_, own) in speeds.items()])
    (view,) = tables([softmax, other])
    for n, (base, own) in speeds.items():
        assert rows_of(view)["linear"].cells[n].ratio == pytest.approx(own / base)


def test_without_softmax_at_a_length_there_is_no_ratio():
    short = card("softmax", [point(1000, speed=8.0), OOM])
    (view,) = tables([short, LINEAR])
    assert rows_of(view)["linear"].cells[4000].ratio is None
    assert speed_text(rows_of(view)["linear"].cells[4000]) == "5"
    assert rows_of(tables([LINEAR])[0])["linear"].cells[1000].ratio is None


def test_out_of_memory_failure_and_absence_are_told_apart_and_explained():
    broken = point(1000, speed=None, status="fail", reason="ValueError: no")
    (view,) = tables([SOFTMAX, card("mine", [broken, OOM]), card("other", [point(1000, speed=2.0)])])
    texts = {line[0]: line[1:] for line in grid(view)[1:]}
    assert texts["Mine"] == ["FAIL", "OOM", "FAIL", "OOM"]
    assert texts["Other"] == ["2 (0.25x)", "–", "–", "–"]
    assert "Mine at 1K: ValueError: no." in footnotes(view)
    assert f"Mine at 4K: {OOM['reason']}." in footnotes(view)


def test_machines_settings_and_modes_never_share_a_table():
    elsewhere = card("softmax", [point(1000, speed=3.0)], gpu="Other GPU")
    smaller = card("softmax", [point(1000, speed=3.0)], batch=8)
    inference = card("softmax", [point(1000, "inference", speed=99.0)])
    found = tables([SOFTMAX, elsewhere, smaller, inference])
    assert [(view.mode, view.machine, view.settings["batch"]) for view in found] == [
        ("train", "Test GPU", 32),
        ("inference", "Test GPU", 32),
        ("train", "Other GPU", 32),
        ("train", "Test GPU", 8),
    ]
    assert tables([SOFTMAX], ["inference"]) == []


def test_of_two_points_the_newer_counts_whatever_the_order_of_the_cards():
    later = card("softmax", [point(1000, speed=9.0)], created="2026-02-01T00:00:00+00:00")
    for order in ([SOFTMAX, later], [later, SOFTMAX]):
        (view,) = tables(order)
        cells = rows_of(view)["softmax"].cells
        assert (cells[1000].steps_per_second, cells[4000].steps_per_second) == (9.0, 1.0)


@pytest.mark.parametrize("mode, name", [("train", "lra-training-speed"), ("inference", "lra-inference-speed")])
def test_published_rows_stand_below_their_mechanism_exactly_as_printed(mode, name):
    lengths = (1000, 2000, 3000, 4000)
    paper = measured(name)
    names = {row.title: row.mechanism or "unknown" for row in paper.rows}
    cards = [card(name, [point(n, mode) for n in lengths]) for name in names.values()]
    (view,) = tables(cards)
    own = [row.mechanism for row in view.rows[::2]]
    assert own == [row.mechanism for row in view.rows[1::2]]
    printed = rows_of(view, "published")
    assert len(printed) == len(paper.rows) == 9
    for row in paper.rows:
        cells = printed[names[row.title]].cells
        assert [cells[n].printed[0] for n in lengths] == [row.printed[f"speed_{n // 1000}k"] for n in lengths]
        assert [cells[n].printed[1] for n in lengths] == [row.printed.get(f"memory_{n // 1000}k", "") for n in lengths]
    doubts = sum(bool(why) for row in printed.values() for cell in row.cells.values() for why in cell.doubts)
    assert doubts == sum(flag.kind != "rounding" for flag in paper.flags()) > 0


def test_a_published_row_is_quoted_once_and_only_at_its_lengths():
    several = [card("softmax", [point(1000), point(512)]), card("softmax(kernel='plain')", [point(1000)])]
    (view,) = tables(several)
    published = [row for row in view.rows if row.source == "published"]
    assert [row.title for row in published] == ["Transformer"]
    assert (speed_text(published[0].cells[1000]), speed_text(published[0].cells[512])) == ("8.1", "–")
    (view,) = tables([card("softmax", [point(512)])])
    assert all(row.source == "own" for row in view.rows)


def test_csv_and_json_give_the_numbers_back():
    views = tables([SOFTMAX, LINEAR])
    lines = list(csv.DictReader(io.StringIO(render(views, "csv"))))
    (data,) = json.loads(render(views, "json"))
    for row in views[0].rows:
        entry = next(e for e in data["rows"] if (e["source"], e["mechanism"]) == (row.source, row.mechanism))
        for length, cell in row.cells.items():
            line = next(
                e
                for e in lines
                if (e["source"], e["mechanism"], e["length"]) == (row.source, row.mechanism, str(length))
            )
            stored = next(e for e in entry["cells"] if e["length"] == length)
            for name in ("steps_per_second", "ratio", "compute_ratio", "memory_gb"):
                assert (float(line[name]) if line[name] else None) == stored[name] == getattr(cell, name)


def test_every_form_shows_every_mechanism_and_a_strangers_words_stay_words():
    hostile = card("=cmd|x", [point(1000)], title="a|b <i>\nc")
    views = tables([SOFTMAX, hostile])
    for form in FORMS:
        assert "Softmax" in render(views, form)
    assert r"a\|b \<i\> c" in render(views, "markdown")
    assert "'=cmd|x" in render(views, "csv")
    with pytest.raises(UnknownName, match="markdown"):
        render(views, "markdwn")


def test_a_card_that_says_little_about_itself_is_shown_all_the_same():
    bare = card("softmax", [point(1000)])
    bare["settings"], bare["environment"] = {}, {}
    (view,) = tables([bare])
    assert "unknown" in view.title
    assert render([view], "markdown")


def test_cards_of_other_procedures_and_kinds_are_passed_over():
    other = card("softmax", [point(1000)])
    other["procedure"] = "decoding"
    assert tables([other, {"kind": "run", "created": "2026-01-02T03:04:05Z"}]) == []
