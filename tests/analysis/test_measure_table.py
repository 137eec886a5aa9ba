"""Tables of a sweep: a row per mechanism, a column per length, a reason for every cell without a time."""

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.analysis.measure_table import duration, render, views
from longspan.core.errors import UnknownName
from tests.results.factory import make_measurement

NOTHING = dict.fromkeys(("seconds", "memory", "energy", "operations", "floor", "achieved", "state_bytes"))
SETTINGS = {"batch": 4, "heads": 8, "dim": 64, "dtype": "bfloat16", "module": "core", "device": "cpu"}


def point(length, seconds=1e-3, mode="forward", variant="eager", status="ok", reason=None):
    time = {"median": seconds, "low": seconds, "high": seconds, "count": 20, "dropped": 0}
    numbers = {"seconds": time} if status == "ok" else {}
    which = {"length": length, "mode": mode, "variant": variant, "status": status, "reason": reason}
    return which | NOTHING | numbers


def core(mechanism="linear", points=(), pattern="causal_self"):
    gate = {"ok": True, "reason": None, "dtype": "bfloat16", "checked": [], "error": None}
    return make_measurement(
        mechanism, procedure="core", pattern=pattern, settings=SETTINGS, gate=gate, ceilings=None, points=list(points)
    )


def test_a_view_is_one_pattern_mode_and_variant_with_every_mechanism_and_length():
    linear = core(points=[point(16), point(64, 2e-6), point(16, mode="train", variant="graph")])
    softmax = core("softmax", [point(16, 3.0), point(64, status="oom", reason="out of memory")])
    one, other = views([linear, softmax, make_measurement()])
    assert one.title == "forward, eager · causal_self · Test CPU · bfloat16 · batch 4, 8 heads of 64 · core"
    assert one.grid() == [["mechanism", "16", "64"], ["linear", "1.00 ms", "2.00 µs"], ["softmax", "3.00 s", "OOM"]]
    assert other.grid() == [["mechanism", "16"], ["linear", "1.00 ms"]]
    assert one.notes() == ["softmax at 64: out of memory."]
    assert len(views([linear, core(pattern="noncausal_self", points=[point(16)])])) == 3


def test_a_reason_is_told_once_for_all_who_share_it_and_a_table_of_nothing_else_is_not_drawn():
    points = [point(n, status="unsupported", reason="no graphs here", variant="graph") for n in (16, 64)]
    cards = [core(name, points) for name in ("linear", "softmax")]
    (view,) = views(cards)
    assert view.notes() == ["linear at 16, 64; softmax at 16, 64: no graphs here."]
    assert not view.possible
    assert "|" not in render(cards)


def test_every_form_has_every_point_and_escapes_what_came_from_a_card():
    cards = [core("=evil|name", [point(16), point(64, status="fail", reason="<b> _x_")])]
    (shown,) = json.loads(render(cards, "json"))
    assert shown["points"] == cards[0]["points"]
    rows = list(csv.DictReader(io.StringIO(render(cards, "csv"))))
    assert [row["status"] for row in rows] == ["ok", "fail"]
    assert rows[0]["mechanism"] == "'=evil|name"
    assert (float(rows[0]["time_ms"]), rows[1]["time_ms"]) == (1.0, "")
    assert r"=evil\|name" in render(cards, "markdown")
    assert r"\<b\> \_x\_" in render(cards, "markdown")
    with pytest.raises(UnknownName, match="markdown"):
        render(cards, "markdwn")


@given(st.floats(1e-8, 1e3))
def test_a_duration_keeps_three_figures_in_a_unit_that_suits_it(seconds):
    number, unit = duration(seconds).split()
    scale = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
    assert float(number) * scale == pytest.approx(seconds, rel=6e-3)
    assert len(number) <= 4
