"""What a card promises: it says everything, it cannot be changed unseen, and reading a hostile one is safe."""

import json
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.core.errors import CorruptFile, UsageError
from longspan.results import card as cards
from longspan.results.card import CardCheck, InvalidCard
from longspan.results.schema import RUN_SCHEMA
from tests.results.factory import make_card, write_predictions


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
    "dataset": {"name": "x", "variant": "invented", "sha256": "0", "counts": {"train": 1, "valid": 1, "test": 1}},
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


def stored(tmp_path, correct=800, **fields):
    """A card claiming 800 of 2000 beside predictions with `correct` hits."""
    write_predictions(tmp_path / "p.npz", correct, 2000)
    return cards.write(tmp_path / "card.json", make_card(accuracy=0.4, files={"predictions": "p.npz"}, **fields))


def statuses(findings: list[CardCheck]) -> dict[str, str]:
    return {finding.check: finding.status for finding in findings}


def test_verify_recomputes_the_score(tmp_path):
    findings = cards.verify(stored(tmp_path))
    assert statuses(findings) == {"card": "kept", "files": "kept", "score": "kept"}
    assert "0.400000 recomputed from 2000" in findings[-1].detail


def test_verify_catches_a_score_the_predictions_do_not_give(tmp_path):
    findings = cards.verify(stored(tmp_path, correct=799))
    assert statuses(findings)["score"] == "broken"
    assert "the predictions give 0.399500" in findings[-1].detail


def test_verify_names_missing_files(tmp_path):
    path = stored(tmp_path)
    (tmp_path / "p.npz").unlink()
    assert statuses(cards.verify(path)) == {"card": "kept", "files": "broken", "score": "broken"}


def test_weights_may_lie_elsewhere_since_no_number_comes_from_them(tmp_path):
    path = cards.write(tmp_path / "card.json", make_card(files={"weights": "w.safetensors"}))
    found = {finding.check: finding for finding in cards.verify(path)}
    assert found["files"].status == "kept"
    assert found["files"].detail == "0 present; the weights are not"


def test_verify_says_what_cannot_be_checked(tmp_path):
    path = cards.write(tmp_path / "card.json", make_card(status="fail"))
    assert statuses(cards.verify(path)) == {"card": "kept", "files": "not applicable", "score": "not applicable"}


def test_verify_stops_at_a_corrupt_card(tmp_path):
    (tmp_path / "card.json").write_bytes(b"{}")
    assert statuses(cards.verify(tmp_path / "card.json")) == {"card": "broken"}


def test_pickled_predictions_are_never_loaded(tmp_path):
    path = stored(tmp_path)
    trap = np.array([object()], dtype=object)
    np.savez(tmp_path / "p.npz", label=trap, prediction=trap)
    assert statuses(cards.verify(path))["score"] == "broken"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nonsense", b"\x80\x04K*."])
def test_garbage_in_place_of_predictions_is_a_finding(content, tmp_path):
    path = stored(tmp_path)
    (tmp_path / "p.npz").write_bytes(content)
    assert statuses(cards.verify(path))["score"] == "broken"
