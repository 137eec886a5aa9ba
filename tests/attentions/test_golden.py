"""Every recorded vector of a mechanism we have is matched, in outputs and gradients, or exempt for a stated reason."""

import pytest

from tests.attentions import parity


@pytest.mark.parametrize("path", parity.vectors(), ids=lambda path: path.stem)
def test_a_golden_vector_is_matched(path):
    verdict = parity.compare(parity.read(path))
    if verdict.status == "skip":
        pytest.skip(verdict.detail)
    assert verdict.status == "ok", verdict.detail


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
