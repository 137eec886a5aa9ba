"""Planted faults: real mechanisms with one real bug each are caught, and under the right name."""

from pathlib import Path

import pytest

from longspan.conformance import check
from tests.conformance.one_promise import ask

FAULTY = Path(__file__).parent / "faulty"
CAUSAL_LAWS = {
    "no future leak",
    "no future gradient",
    "prefix = full",
    "step = parallel",
    "masked prefix",
    "decode state",
    "other sizes",
    "causality in training",
    "no future leak at length",
    "prefix = full at length",
    "step = parallel at length",
}
MASK_LAWS = {
    "batch independence",
    "first row alone",
    "padding content",
    "appended padding",
    "left padding",
    "holes",
    "packed = padded",
    "packed gradients",
    "rows without tokens",
    "empty rows",
    "empty rows in bfloat16",
    "other sizes",
    "rows in training",
    "padding in training",
}
EMPTY_LAWS = {"rows without tokens", "packed gradients", "empty rows in bfloat16"}

# file:Class, pattern, the promise that must be broken, others that may break with it; all others must be kept
FAULTS = [
    ("future_leak_max.py:FutureLeakMax", "causal_self", "no future leak", CAUSAL_LAWS),
    ("selection_leak.py:SelectionLeak", "causal_self", "no future leak", CAUSAL_LAWS - {"no future gradient"}),
    ("padding_mix.py:PaddingMix", "noncausal_self", "padding content", MASK_LAWS),
    ("padding_mix.py:PaddingMix", "noncausal_cross", "padding content", MASK_LAWS),
    ("forgetful_abc.py:ForgetfulABC", "causal_self", "past is used", set()),
    ("wrong_step.py:WrongStep", "causal_self", "step = parallel", CAUSAL_LAWS),
    ("unsaved_projection.py:UnsavedProjection", "noncausal_self", "save and load", set()),
    ("unsaved_projection.py:UnsavedProjection", "noncausal_cross", "save and load", set()),
    ("nan_row.py:NanRow", "noncausal_self", "empty rows", EMPTY_LAWS),
    ("nan_row.py:NanRow", "causal_self", "empty rows", EMPTY_LAWS),
    ("nan_row.py:NanRow", "causal_cross", "empty rows", EMPTY_LAWS),
    ("quadratic.py:Quadratic", "noncausal_self", "declared cost", set()),
    ("quadratic.py:HiddenQuadratic", "noncausal_self", "declared cost", set()),
    ("crashes.py:OddLength", "noncausal_self", "odd lengths", set()),
    ("crashes.py:Unbuildable", "noncausal_self", "construction", set()),
]


each_fault = pytest.mark.parametrize("target, pattern, promise, consequences", FAULTS)


@each_fault
def test_a_planted_fault_is_found_under_its_name(target, pattern, promise, consequences):
    assert ask(str(FAULTY / target), pattern, promise).status == "broken"


@pytest.mark.full
@each_fault
def test_a_planted_fault_breaks_nothing_else(target, pattern, promise, consequences):
    (report,) = check(str(FAULTY / target), [pattern], profile="quick")
    names = {result.promise for result in report.broken}
    assert not report.ok
    assert promise in names
    assert names <= {promise} | consequences, report.broken


def test_without_a_layer_nothing_else_is_asked():
    (report,) = check(str(FAULTY / "crashes.py:Unbuildable"), ["NS"], profile="quick")
    assert [result.promise for result in report.broken] == ["construction"]
    assert {result.status for result in report.results[1:]} == {"not applicable"}


def test_a_selection_leak_has_no_gradient():
    target = str(FAULTY / "selection_leak.py:SelectionLeak")
    assert ask(target, "causal_self", "no future gradient").status == "kept"


def test_mixed_masks_hide_without_a_mask():
    result = ask(str(FAULTY / "padding_mix.py:PaddingMix"), "noncausal_self", "batch independence")
    assert "with masks" in result.detail


def test_whatever_a_mechanism_raises_is_a_broken_promise_in_a_sentence():
    result = ask(str(FAULTY / "crashes.py:Leaves"), "noncausal_self", "shape and dtype")
    assert result.status == "broken"
    assert result.detail.startswith("raised SystemExit: 3 (crashes.py, line ")


def test_an_interruption_is_not_a_broken_promise():
    with pytest.raises(KeyboardInterrupt):
        check(str(FAULTY / "crashes.py:Interrupted"), profile="quick")
