"""Runs, probes and measurements share common fields and one store, and never replace one another."""

import copy
import functools
import operator
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from longspan.core.errors import CorruptFile, UsageError
from longspan.results import card as cards
from longspan.results.card import InvalidCard
from longspan.results.schema import ANSWERS, PROCEDURES, SCHEMAS
from longspan.results.store import Store
from longspan.results.verify import verify
from tests.results.factory import make_card, make_measurement, make_probe

MAKERS = {"run": make_card, "probe": make_probe, "measurement": make_measurement}
PLACES = {"run": "listops", "probe": "probes", "measurement": "measurements"}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_card_of_every_kind_survives_the_store_and_verify_accepts_it(kind, tmp_path):
    card = MAKERS[kind]()
    path = Store(tmp_path).add(card)
    assert cards.read(path) == card
    assert path.parent == tmp_path / PLACES[kind]
    assert all(finding.status != "broken" for finding in verify(path))


@pytest.mark.parametrize("kind, field", [(kind, field) for kind in SCHEMAS for field in SCHEMAS[kind]["required"]])
def test_a_card_of_any_kind_that_lacks_a_field_is_refused(kind, field):
    card = MAKERS[kind]()
    del card[field]
    with pytest.raises(InvalidCard, match=field):
        cards.validate(card)


FAULTS = [
    (make_probe, {"results": {}}, "answers nothing"),
    (make_probe, {"subject": {"task": "listops"}}, "subject"),
    (make_probe, {"method": ""}, "method"),
    (make_measurement, {"points": [{"length": 1000, "mode": "train"}]}, "points"),
]


@pytest.mark.parametrize("make, change, word", FAULTS)
@pytest.mark.parametrize("with_jsonschema", [True, False])
def test_a_wrong_value_in_another_kind_is_refused(make, change, word, with_jsonschema, monkeypatch):
    if not with_jsonschema:
        monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(InvalidCard, match=word):
        cards.validate(make(**change))


def point(**change):
    return {**make_measurement()["points"][0], **change}


@pytest.mark.parametrize(
    "points, word",
    [
        ([point(), point()], "occurs twice"),
        ([point(steps_per_second=None, compute_steps_per_second=None)], "no speed"),
        ([point(status="oom", reason=None)], "no reason"),
    ],
)
def test_a_measured_point_says_what_was_found_or_why_not(points, word):
    with pytest.raises(InvalidCard, match=word):
        cards.validate(make_measurement(points=points))
    cards.validate(make_measurement(points=[point(status="oom", reason="out of memory", steps_per_second=None)]))


def test_an_unknown_kind_is_refused_with_a_sentence(tmp_path):
    path = tmp_path / "card.json"
    cards.write(path, make_probe())
    path.write_text(path.read_text().replace('"probe"', '"rumour"'))
    with pytest.raises(CorruptFile, match="kind 'rumour'; known kinds: run, probe, measurement"):
        cards.read(path)
    with pytest.raises(UsageError, match="Did you mean 'probe'"):
        Store(tmp_path).cards("probes")


def test_who_asks_for_runs_sees_runs_only(tmp_path):
    store = Store(tmp_path)
    for make in MAKERS.values():
        store.add(make())
    assert [card["kind"] for card in store.cards()] == ["run"]
    assert [card["kind"] for card in store.cards(superseded=True)] == ["run"]
    assert [card["kind"] for card in store.find(mechanism="softmax")] == ["run"]
    assert [card["question"] for card in store.find(kind="probe", question="span")] == ["span"]
    assert [card["kind"] for card in store.cards("measurement")] == ["measurement"]
    assert len(list(store.entries())) == 3
    assert store.problems == []


def test_a_card_of_the_wrong_kind_is_refused_where_one_kind_is_wanted(tmp_path):
    path = cards.write(tmp_path / "card.json", make_probe())
    assert cards.read(path, "probe")["question"] == "span"
    with pytest.raises(UsageError, match="card of a probe, not of a run"):
        cards.read(path, "run")


@pytest.mark.parametrize("make", [make_probe, make_measurement])
def test_asking_again_supersedes_the_older_answer(make, tmp_path):
    store = Store(tmp_path)
    store.add(make(created="2026-02-01T00:00:00Z"))
    store.add(make(created="2026-01-01T00:00:00Z"))
    store.add(make(mechanism="linear"))
    kind = make()["kind"]
    assert [card["created"][:7] for card in store.cards(kind)] == ["2026-01", "2026-02"]
    assert len(store.cards(kind, superseded=True)) == 3


VALUES = [None, True, False, 0, 1, -1, 1.0, 0.5, 2**63, 1e151, "", "x", "a" * 501, "a" * 64 + "\n", [], [None], {}]
VALUES += [{"": {}}, {"x": 1}, "0" * 64, "2026-01-01T00:00:00Z", "ok", "softmax\n", [[1.0]], [{"step": 0}]]


def places(value, way=()):
    """The path of every value within a value."""
    yield way
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in below:
        yield from places(inner, (*way, key))


@pytest.mark.parametrize("kind", SCHEMAS)
def test_our_own_check_refuses_what_jsonschema_refuses_and_nothing_else(kind):
    """Our check decides, since it is faster: every value of a card is corrupted in every way."""
    validator = Draft202012Validator(SCHEMAS[kind])
    card, refused = MAKERS[kind](), 0
    for way in places(card):
        for value in [*VALUES, KeyError] if way else VALUES:
            changed = copy.deepcopy(card)
            inner: Any = functools.reduce(operator.getitem, way[:-1], changed)
            if not way:
                changed = value
            elif value is KeyError:
                del inner[way[-1]]
            else:
                inner[way[-1]] = value
            fault = next(cards.structural_faults(changed, SCHEMAS[kind]), None)
            assert (fault is None) == validator.is_valid(changed), (way, value, fault)
            refused += fault is not None
    assert refused > 500


def test_our_own_check_knows_every_keyword_of_the_schemas():
    known = {"$schema", "title", "type", "enum", "minLength", "maxLength", "pattern", "minimum", "maximum"}
    known |= {"minItems", "maxItems", "items", "required", "properties", "additionalProperties"}
    stack: list[Mapping[str, Any]] = [*SCHEMAS.values(), *ANSWERS.values(), *PROCEDURES.values()]
    while stack:
        schema = stack.pop()
        assert schema.keys() <= known
        stack += schema.get("properties", {}).values()
        stack += [schema[name] for name in ("items", "additionalProperties") if name in schema]
