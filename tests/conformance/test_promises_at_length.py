"""Promises at length: each catches faults that show only beyond a few hundred tokens."""

import pytest

from longspan import attentions
from longspan.attentions import Pattern
from longspan.conformance import check
from longspan.conformance.at_length import FAR, FARTHEST, far
from longspan.conformance.subject import Subject
from tests.conformance import faults_at_length as faults
from tests.conformance import faults_of_length_bound as bound
from tests.conformance.one_promise import ask

NS, CS, NC, CC = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_CROSS, Pattern.CAUSAL_CROSS
LEAK, PREFIX, STEP = "no future leak at length", "prefix = full at length", "step = parallel at length"
SHORT_LAWS = {"step = parallel", "masked prefix", "decode state", "appended padding", STEP, PREFIX}

# class, pattern, the promise it breaks, and those that must break with it; all others are kept
FAULTS = [
    (faults.LeaksBeyond256, CS, LEAK, {PREFIX, STEP}),
    (faults.PoolsManyQueries, CC, LEAK, {PREFIX, STEP}),
    (faults.BlocksFromTheEnd, CS, PREFIX, {STEP, "left padding"}),
    (faults.TemperatureOfLength, CS, PREFIX, {STEP}),
    (faults.CacheOf256, CS, STEP, set()),
    (faults.CountInAByte, CS, STEP, set()),
    (faults.WindowOf100, NS, "exact limit", set()),
    (faults.WindowOf100, CS, "exact limit", set()),
    (faults.BestOf200, NS, "exact limit", set()),
    (faults.DetachedChunks, CS, "derivative at length", set()),
    (faults.DetachedFarKeys, NC, "derivative at length", set()),
    (faults.DetachedFarKeys, CS, "derivative at length", set()),
    (faults.DividesByProducts, CS, "finite at length", set()),
    (faults.CappedExponentials, NS, "finite at length", set()),
    (bound.BoundInName, NC, "length independence", set()),
    (bound.BoundByABuffer, CS, "length independence", set()),
    (bound.BlocksFromTheEnd, CS, "prefix = full", SHORT_LAWS | {"selected rows"}),
    (bound.PaddedMean, NS, "appended padding", {"left padding"}),
    (bound.FatAnyway, NS, "parameter overhead", set()),
]


each_fault = pytest.mark.parametrize(
    "faulty, pattern, promise, more", FAULTS, ids=[f"{f[0].__name__}-{f[1].code}" for f in FAULTS]
)


@each_fault
def test_what_goes_wrong_at_length_is_found_under_its_name(faulty, pattern, promise, more):
    found = ask(faulty, pattern, promise)
    assert found.status == "broken"
    assert not found.detail.startswith("raised")


@pytest.mark.full
@each_fault
def test_what_goes_wrong_at_length_alone_is_found_under_its_name(faulty, pattern, promise, more):
    (report,) = check(faulty, [pattern], profile="quick")
    names = {result.promise for result in report.broken}
    assert promise in names, report
    assert names <= {promise} | more, report.broken
    assert not any(result.detail.startswith("raised") for result in report.broken)


@pytest.mark.parametrize("pattern", [CS, pytest.param(NS, marks=pytest.mark.full)])
def test_a_mechanism_that_is_bound_to_a_length_keeps_every_promise(pattern):
    (report,) = check(bound.BiasOfPlaces, [pattern], profile="quick")
    assert report.ok, report.broken


def test_an_option_that_frees_a_mechanism_of_its_length_is_no_false_declaration():
    assert ask("sparse_transformer(stride=16)", NS, "length independence").status == "kept"


@pytest.mark.parametrize(
    "spec, length",
    [("softmax", FAR), ("longformer", 1101), ("local(window=900)", 1877), ("local(window=9999)", FARTHEST)],
)
def test_the_length_lies_beyond_every_window_within_reason(spec, length):
    assert far(Subject(attentions.get(spec), NS)) == length
