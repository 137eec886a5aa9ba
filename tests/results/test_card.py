"""What a card promises: it is complete, changes to it are detected, and reading a hostile one is safe."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.core.errors import CorruptFile, UsageError
from longspan.results import card as cards
from longspan.results.card import InvalidCard
from longspan.results.schema import RUN_SCHEMA
from longspan.results.store import Store
from tests.results.factory import make_card


def resealed(**fields):
    card = make_card(sealed=False, **fields)
    return {**card, "sha256": cards.content_hash(card)}


def test_a_card_survives_the_disk_unchanged(tmp_path):
    card = make_card("performer(features=64)")
    path = cards.write(tmp_path / cards.filename(card), card)
    assert cards.read(path) == card


@pytest.mark.parametrize("field", RUN_SCHEMA["required"])
def test_a_card_that_lacks_a_field_is_refused(field):
    card = make_card()
    del card[field]
    with pytest.raises(InvalidCard, match=field):
        cards.validate(card)


FAULTS = {
    "schema": 2,
    "kind": "rumour",
    "seed": "0",
    "task": "",
    "track": "fast",
    "fidelity": 1,
    "overrides": None,
    "created": "2026-13-02T03:04:05Z",
    "status": "perhaps",
    "score": None,
    "settings": {"data": {}},
    "parameters": {"total": -1, "parts": {}, "baseline": None, "ratio": None, "within_rule": None},
    "files": {"predictions": "../../etc/passwd"},
    "curve": [{"train_loss": 1.0}],
    "dataset": {"name": "x", "variant": "Not a word", "sha256": "0", "counts": {"train": 1, "valid": 1, "test": 1}},
}


@pytest.mark.parametrize("field", FAULTS)
def test_a_wrong_value_is_refused(field):
    with pytest.raises(InvalidCard, match=field if field != "settings" else "precision|recipe|model|device"):
        cards.validate({**make_card(), field: FAULTS[field]})


@pytest.mark.parametrize("field", FAULTS)
def test_without_jsonschema_the_same_cards_are_refused(field, monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    cards.validate(make_card())
    with pytest.raises(InvalidCard):
        cards.validate({**make_card(), field: FAULTS[field]})
    card = make_card()
    del card[field]
    with pytest.raises(InvalidCard):
        cards.validate(card)


def test_a_failed_run_needs_a_reason_but_no_score():
    cards.validate(make_card(status="fail"))
    with pytest.raises(InvalidCard, match="no reason"):
        cards.validate(resealed(status="fail", reason=None))


def test_an_accuracy_in_percent_is_refused():
    with pytest.raises(InvalidCard, match="fraction"):
        cards.validate(make_card(accuracy=41.0))


SIZE = make_card()["parameters"]
SCORE = make_card()["score"]
FALSE = {
    "beside 100000": {"parameters": SIZE | {"total": 110_001, "ratio": 1.0}},
    "beside 1000": {"parameters": SIZE | {"baseline": 1000, "ratio": 100.0}},
    "baseline is null": {"parameters": SIZE | {"baseline": None, "ratio": None}},
    "within_rule is null": {"parameters": SIZE | {"within_rule": None}},
    "split": {"score": SCORE | {"split": "train"}},
    "never negative": {"score": SCORE | {"name": "perplexity", "value": -1.0, "higher_is_better": False}},
    "is True": {"score": SCORE | {"name": "mse", "value": 1.0}},
    "is False": {"score": SCORE | {"higher_is_better": False}},
    "from the weights of another run": {"initial_sha256": "0" * 64},
    "rules.no pretraining was not kept": {"rules": {"no pretraining": {"kept": False, "finding": "opened: x.pt"}}},
}


@pytest.mark.parametrize("said", FALSE)
def test_what_would_earn_a_place_that_no_run_has_is_refused(said):
    """Such a card is left out of every board and every analysis, also where nobody runs `verify`."""
    with pytest.raises(InvalidCard, match=said):
        cards.validate(make_card() | FALSE[said])


def test_an_honest_card_may_still_say_these():
    elsewhere = {"initial_sha256": "0" * 64} | FALSE["rules.no pretraining was not kept"]
    cards.validate(make_card(track="free") | elsewhere)
    cards.validate(make_card() | {"parameters": SIZE | {"total": 110_001, "ratio": 1.1, "within_rule": False}})
    cards.validate(make_card() | {"parameters": SIZE | {"total": 110_000, "ratio": 1.1}})
    cards.validate(make_card(status="fail") | {"parameters": SIZE | {"total": None, "within_rule": None}})
    for rules in ([1], {"a": 1}, {"a": {"kept": True}}, None):  # a field that the schema does not know
        cards.validate(make_card() | {"rules": rules})


def test_a_card_changed_after_sealing_is_noticed(tmp_path):
    path = cards.write(tmp_path / "card.json", make_card(accuracy=0.4))
    path.write_text(path.read_text().replace('"value": 0.4,', '"value": 0.9,'))
    with pytest.raises(CorruptFile, match="changed after the run"):
        cards.read(path)
    with pytest.raises(InvalidCard, match="changed after it was sealed"):
        cards.write(path, {**make_card(), "seed": 5})


def test_a_nan_is_refused_before_it_is_written(tmp_path):
    card = make_card(sealed=False)
    card["metrics"]["test"]["loss"]["value"] = float("nan")
    with pytest.raises(InvalidCard, match="NaN"):
        cards.write(tmp_path / "card.json", card)
    assert not list(tmp_path.iterdir())


HOSTILE = {
    "empty": b"",
    "not json": b"{",
    "not utf-8": b'{"schema": "\xff"}',
    "not an object": b"[1, 2]",
    "a repeated key": b'{"schema": 1, "schema": 1}',
    "nan": b'{"schema": NaN}',
    "infinity": b'{"schema": -Infinity}',
    "infinity by overflow": b'{"schema": 1e999}',
    "a huge integer": b'{"schema": ' + b"9" * 10_000 + b"}",
    "deep": b'{"a":' * 100 + b"1" + b"}" * 100,
    "very deep": b"[" * 200_000 + b"]" * 200_000,
    "half a character": b'{"schema": "\\ud800"}',
    "oversized": b" " * (cards.MAX_BYTES + 1),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_gives_one_sentence(content, tmp_path):
    path = tmp_path / "hostile.json"
    path.write_bytes(content)
    with pytest.raises(CorruptFile) as caught:
        cards.read(path)
    assert str(caught.value).startswith("hostile.json: ")
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_card_and_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(CorruptFile, match="plain file"):
        cards.read(tmp_path)
    with pytest.raises(UsageError, match="No card at"):
        cards.read(tmp_path / "absent.json")


@given(st.binary(max_size=300))
def test_no_bytes_whatever_break_the_parser(content):
    try:
        cards.parse(content)
    except CorruptFile:
        return
    json.loads(content)


@given(st.text(min_size=1, max_size=400))
def test_no_mechanism_string_escapes_the_folder(mechanism):
    card = make_card(sealed=False)
    card["mechanism"] = mechanism.encode("utf-8", "replace").decode()
    name = cards.filename(card)
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.=-")
    assert not name.startswith(".")
    assert ".." not in name.removesuffix(".json").split("-")
    assert len(name) < 255


def test_the_file_name_is_readable_and_tells_cards_apart():
    one, other = make_card("performer(features=64)"), make_card("performer(features=64)", accuracy=0.5)
    start = "listops-performer_features=64-noncausal_self-longspan-smoke-seed0-"
    assert cards.filename(one).startswith(start)
    assert cards.filename(other).startswith(start)
    assert cards.filename(one) != cards.filename(other)


# -------------------------------------------------------------------------------------------------------------- bounds

TOO_LARGE = (10**400, 2**63, -(2**63), 1.1e150, -1e151)
PLACES = {
    "a score": lambda card, number: card["score"].update(value=number, name="mse"),
    "a seed": lambda card, number: card.update(seed=number),
    "a count": lambda card, number: card["score"].update(count=number),
    "an override": lambda card, number: card["overrides"].update({"recipe.steps": number}),
    "a setting": lambda card, number: card["settings"]["model"].update(dim=[number]),
    "the environment": lambda card, number: card["environment"].update(cpu_count=number),
    "the curve": lambda card, number: card["curve"][0].update(train_loss=number),
    "an unknown field": lambda card, number: card.update(new={"deep": [{"er": number}]}),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", TOO_LARGE, ids=lambda number: f"{number:.0e}" if abs(number) < 1e300 else "1e400")
def test_no_number_anywhere_may_be_larger_than_arithmetic_bears(place, number, tmp_path):
    card = make_card(sealed=False)
    PLACES[place](card, number)
    with pytest.raises(InvalidCard):
        cards.write(tmp_path / "card.json", card)
    with pytest.raises(InvalidCard):
        cards.validate({**card, "sha256": "0" * 64})
    (tmp_path / "card.json").write_text(json.dumps({**card, "sha256": cards.content_hash(card)}))
    with pytest.raises(CorruptFile):
        cards.read(tmp_path / "card.json")


@pytest.mark.parametrize("number", [2**63 - 1, 1e150, -1e150, 5e-324, -0.0, 0, 1e22])
def test_every_other_number_is_allowed(number, tmp_path):
    card = make_card(sealed=False)
    for place in ("an override", "a setting", "the environment", "the curve", "an unknown field"):
        PLACES[place](card, number)
    cards.read(cards.write(tmp_path / "card.json", card))


@pytest.mark.parametrize(
    "created",
    [
        "2026-13-01T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "2026-01-01T24:00:01Z",
        "2026-01-01T00:00:60Z",
        "2026-01-01T00:00:00Z\n",
        "٢٠٢٦-01-01T00:00:00Z",
        "2026-01-01T00:00:00." + "1" * 100 + "Z",
    ],
)
def test_a_date_that_is_none_is_refused(created):
    with pytest.raises(InvalidCard, match="created"):
        cards.validate({**make_card(), "created": created})


@pytest.mark.parametrize("created", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999+00:00"])
def test_an_odd_date_is_a_date(created, tmp_path):
    Store(tmp_path).add(make_card(created=created))
    assert len(Store(tmp_path).cards()) == 1


def test_a_file_name_ends_where_it_ends():
    with pytest.raises(InvalidCard, match="files"):
        cards.validate(make_card(files={"predictions": "p.npz\n"}))
    with pytest.raises(InvalidCard, match="files_sha256"):
        cards.validate(make_card(files_sha256={"predictions": "0" * 64 + "\n"}))


def test_longer_texts_are_allowed_and_endless_ones_are_not():
    cards.validate(make_card(title="x" * 500, status="fail", reason="x" * 10_000, environment={"note": "x" * 100_000}))
    with pytest.raises(InvalidCard, match="longer than"):
        make_card(environment={"note": "x" * 100_001})


def test_of_a_million_faults_only_the_first_are_weighed(monkeypatch):
    """Weighing all of them took minutes for a card of 16 MiB, at every look at its folder."""
    weighed = []

    def count(errors):
        weighed.extend(errors)
        return weighed[0]

    monkeypatch.setattr("jsonschema.exceptions.best_match", count)
    with pytest.raises(InvalidCard, match="step"):
        cards.validate(make_card() | {"curve": [{}] * 10_000})
    assert len(weighed) == cards.MAX_FAULTS


def test_a_fault_is_told_in_few_words_however_long_the_card():
    with pytest.raises(InvalidCard) as caught:
        cards.validate(make_card(title="x" * 90_000))
    assert len(str(caught.value)) < 1000
