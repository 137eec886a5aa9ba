"""Every recorded vector of a mechanism we have is matched, in outputs and gradients, or exempt for a stated reason."""

from dataclasses import replace

import pytest

from tests.attentions import parity
from tests.attentions.golden_reasons import IN_PART, NOT_MATCHED, NOT_READ


@pytest.mark.parametrize("path", parity.vectors(), ids=lambda path: path.stem)
def test_a_golden_vector_is_matched_in_every_gradient_and_row_or_exempt_by_name(path):
    vector = parity.read(path)
    verdict = parity.compare(vector)
    if path.stem in NOT_MATCHED:
        assert verdict.status == "skip"
        return
    assert verdict.status == "ok", verdict.detail
    gradients = {name for name in vector.arrays if name.startswith("d") and name[1:] in vector.arrays}
    assert set(verdict.compared) == {"out"} | gradients
    assert gradients or "w" not in vector.arrays, "what has a cotangent has gradients"
    valid = vector.arrays.get("rows_valid")
    left_out = 0 if valid is None else int((~valid).sum()) * vector.arrays["out"].shape[1]
    assert verdict.open_rows == left_out if path.stem in IN_PART else verdict.open_rows in (0, padded_queries(vector))


def padded_queries(vector):
    """The number of output rows that belong to padding, where queries and keys are the same tokens."""
    padded = vector.arrays.get("key_padding_mask")
    same = padded is not None and not vector.pattern.cross and vector.arrays["out"].shape[-2] == padded.shape[1]
    return int(padded.sum()) * vector.arrays["out"][0, ..., 0, 0].numel() if same else 0


def test_every_reason_belongs_to_something():
    """In a clone without the full collection, only the vectors present are checked."""
    names = {path.stem for path in parity.vectors()}
    if parity.FULL.is_dir():
        assert names >= NOT_MATCHED.keys() | IN_PART.keys()
    assert all(reason.strip() for reasons in (NOT_MATCHED, IN_PART, NOT_READ) for reason in reasons.values())


def others(value):
    """Some other values of the same type."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, 2 * value + 1, max(value // 2, 1)]
        case float():
            return [value + 1]
        case str():
            return [f"{value}?", "".join(chr(ord(letter) + letter.isdigit()) for letter in value)]
        case list():
            return [[others(one)[0] for one in value]]
    return [3]


@pytest.mark.parametrize("path", sorted(parity.SHIPPED.glob("*.npz")), ids=lambda path: path.stem)
def test_a_setting_that_is_altered_is_not_overlooked(path):
    """Each setting determines what is replayed, or is checked against something that does."""
    vector = parity.read(path)
    settings = vector.meta["hyperparameters"]
    for name in settings:
        if (vector.meta["mechanism"], name) in NOT_READ or (path.stem, name) in NOT_READ:
            continue
        metas = [vector.meta | {"hyperparameters": settings | {name: other}} for other in others(settings[name])]
        verdicts = [parity.verdict_on(replace(vector, meta=meta)) for meta in metas]
        assert any(verdict.status != "ok" for verdict in verdicts), f"{name} may be anything"


def test_a_setting_that_nothing_reads_is_a_mismatch():
    vector = parity.read(next(parity.SHIPPED.glob("linear__*.npz")))
    vector.meta["hyperparameters"]["power"] = 2
    assert parity.compare(vector).detail == "nothing reads its power; see golden_reasons.py"


def test_a_vector_of_a_mechanism_we_have_needs_a_case_or_a_reason(monkeypatch):
    (vector, *_) = (parity.read(path) for path in parity.SHIPPED.glob("linear__*.npz"))
    assert parity.known("linear")
    monkeypatch.setattr(parity, "_case_file", lambda mechanism: False)
    assert parity.known("linear"), "known by its file in attentions/, whatever the tests have"
    verdict = parity.compare(vector)
    assert verdict.status == "mismatch"
    assert "golden_cases/linear.py" in verdict.detail


@pytest.mark.parametrize("name, expected", [("linear", True), ("local_lra", True), ("abc_cab", True), ("hyena", False)])
def test_a_mechanism_is_known_also_with_a_word_for_whose_code_it_is(name, expected):
    assert parity.known(name) is expected


def test_the_repository_ships_vectors_of_its_own():
    assert list(parity.SHIPPED.glob("*.npz"))


def test_a_wrong_number_is_a_mismatch():
    vector = parity.read(next(parity.SHIPPED.glob("linear__*.npz")))
    vector.arrays["dq"][0, 0, 0, 0] += 1e-2
    verdict = parity.compare(vector)
    assert verdict.status == "mismatch"
    assert verdict.detail.startswith("dq: off by 1.0e-02")
