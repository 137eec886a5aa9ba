"""Promises about training: each catches faults that no other promise sees."""

import pytest

from longspan.attentions import Pattern
from longspan.conformance import check
from tests.conformance import faults_in_training as faults
from tests.conformance.one_promise import ask

NS, CS, NC, CC = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_CROSS, Pattern.CAUSAL_CROSS

# class, pattern, and all promises it breaks
FAULTS = [
    (faults.CentredOverTime, CS, {"causality in training"}),
    (faults.LooksAhead, CS, {"causality in training"}),
    (faults.GradientFromLater, CS, {"causality in training"}),
    (faults.BatchMaximumOfKeys, NS, {"rows in training"}),
    (faults.BatchMaximumOfKeys, NC, {"rows in training"}),
    (faults.NextRow, NS, {"rows in training"}),
    (faults.MaskForgotten, NS, {"padding in training"}),
    (faults.MaskForgotten, CC, {"padding in training"}),
    (faults.NormOverPadding, NC, {"padding in training"}),
    (faults.HardDropout, NS, {"training = evaluation"}),
    (faults.HardDropout, CC, {"training = evaluation"}),
    (faults.AnotherTemperature, CS, {"training = evaluation"}),
    (faults.NormOverBatch, NS, {"training = evaluation", "rows in training", "padding in training"}),
    (
        faults.NormOverBatch,
        CS,
        {"training = evaluation", "causality in training", "rows in training", "padding in training"},
    ),
]


each_fault = pytest.mark.parametrize(
    "faulty, pattern, promises", FAULTS, ids=[f"{f.__name__}-{p.code}" for f, p, _ in FAULTS]
)


@each_fault
def test_what_goes_wrong_in_training_is_found_under_its_name(faulty, pattern, promises):
    for promise in promises:
        found = ask(faulty, pattern, promise)
        assert found.status == "broken"
        assert not found.detail.startswith("raised")


@pytest.mark.full
@each_fault
def test_what_goes_wrong_in_training_alone_is_found_under_its_name(faulty, pattern, promises):
    (report,) = check(faulty, [pattern], profile="quick")
    assert {result.promise for result in report.broken} == promises, report.broken
    assert not any(result.detail.startswith("raised") for result in report.broken)


@pytest.mark.parametrize("pattern", [CS, *(pytest.param(one, marks=pytest.mark.full) for one in (NS, NC, CC))])
def test_declared_randomness_in_training_breaks_nothing(pattern):
    (report,) = check(faults.NoisyInTraining, [pattern], profile="quick")
    assert report.ok, report.broken
