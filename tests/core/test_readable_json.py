"""JSON files that people read and diff: one field per line, one point per line, and the content unchanged."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.core.readable_json import dumps

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=60),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=20), inner, max_size=6),
    max_leaves=40,
)


@given(VALUES, st.booleans(), st.booleans())
def test_the_content_is_that_of_json(value, sort_keys, ensure_ascii):
    text = dumps(value, sort_keys=sort_keys, ensure_ascii=ensure_ascii)
    assert json.dumps(json.loads(text)) == json.dumps(value, sort_keys=sort_keys)
    assert text.isascii() or not ensure_ascii


def test_a_point_is_a_line_and_a_field_is_a_line():
    point = {"length": 1024, "seconds": {"median": 0.001, "low": 0.0009, "high": 0.002}, "reason": "x" * 200}
    card = {
        "kind": "measurement",
        "points": [point, point],
        "settings": {f"name{n}": n for n in range(20)},
        "files": {},
    }
    lines = dumps(card).splitlines()
    assert lines[:3] == ["{", ' "kind": "measurement",', ' "points": [']
    assert [json.loads(line.rstrip(",")) for line in lines[3:5]] == [point, point]
    assert lines[6:9] == [' "settings": {', '  "name0": 0,', '  "name1": 1,']
    assert lines[-2:] == [' "files": {}', "}"]


def test_reports_in_a_list_have_a_line_for_each_of_their_entries():
    report = {"mechanism": "softmax", "promises": [{"promise": "shape", "status": "kept"}] * 3}
    lines = dumps([report, report]).splitlines()
    assert lines.count('   {"promise": "shape", "status": "kept"},') == 4
    assert lines.count('  "mechanism": "softmax",') == 2


def test_keys_become_text_and_tuples_lists_as_json_has_them():
    assert json.loads(dumps({1: (2, 3), None: True})) == {"1": [2, 3], "null": True}
    with pytest.raises(ValueError, match="Out of range"):
        dumps({"score": float("nan")})
