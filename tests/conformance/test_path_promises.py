"""Faults on the paths that training and serving take: each is found under its name, and by no other promise."""

import pytest

from longspan.attentions import Pattern
from longspan.conformance import check
from tests.conformance import faults_in_packing as packing
from tests.conformance import faults_in_states as states
from tests.conformance import faults_on_paths as paths
from tests.conformance.one_promise import ask

NS, CS, NC, CC = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_CROSS, Pattern.CAUSAL_CROSS

FAULTS = [
    (packing.KeysLearnNothingPacked, NS, "packed gradients"),
    (packing.PackedWithoutHistory, CS, "packed gradients"),
    (packing.PackedIntoRectangle, CS, "packed cost"),
    (packing.PackedAsOneRow, NS, "packed cost"),
    (packing.RowsFoundBySearch, NS, "rows without tokens"),
    (packing.MaximumOfNothing, CS, "rows without tokens"),
    (packing.FirstOfNothing, NS, "rows without tokens"),
    (packing.FirstBesideTheMask, NS, "rows without tokens"),
    (packing.MeanOfPaddingInHalf, NC, "empty rows in bfloat16"),
    (packing.NanGradientInHalf, CS, "empty rows in bfloat16"),
    (states.WritesIntoItsCache, CS, "state used again"),
    (states.CountsInPlace, CS, "state used again"),
    (states.SelectsInPlace, CC, "selected rows"),
    (states.NeverFewerRows, CS, "selected rows"),
    (states.NoMaskNoRows, CC, "selected rows"),
    (paths.ContextSizedByLength, NC, "length of the context"),
    (paths.QueriesSizedByContext, CC, "length of the context"),
    (paths.WeightsWithoutMask, NS, "weights = attend"),
    (paths.WeightsOfTheFuture, CS, "weights = attend"),
    (paths.PoolsItsQueries, NC, "weights = attend"),
    (paths.BlocksFromTheEdge, NS, "left padding"),
    (paths.StripesFromTheEdge, CS, "left padding"),
    (paths.SpansHoles, NS, "holes"),
    (paths.SaysPlacesAreDistances, NC, "holes"),
    (paths.SaysPlacesArePositions, NS, "left padding"),
    (paths.KnowsTwoHeads, CS, "other sizes"),
    (paths.PairsOfChannels, NS, "other sizes"),
    (paths.SqueezesOneHead, NC, "other sizes"),
    (paths.ViewsItsInput, NS, "strided inputs"),
    (paths.ReadsMemoryInOrder, NS, "strided inputs"),
    (paths.ViewsItsMask, CC, "strided inputs"),
    (paths.MaskOnTheHost, NS, "another device"),
    (paths.TableOnTheHost, CC, "another device"),
    (paths.ErasesPadding, NS, "inputs untouched"),
    (paths.MarksTheFirstToken, NS, "inputs untouched"),
    (paths.ErasesContext, CC, "inputs untouched"),
    (paths.SpendsPackedTokens, CS, "inputs untouched"),
    (paths.CarriesWithoutMask, NC, "carried = forward"),
    (paths.CarriesNothingAsZeros, CS, "carried = forward"),
]
CONSEQUENCES = {
    packing.FirstOfNothing: {"empty rows in bfloat16"},
    packing.FirstBesideTheMask: {"empty rows in bfloat16"},
}
PROMISES = {promise for _, _, promise in FAULTS}


each_fault = pytest.mark.parametrize(
    "fault, pattern, promise", FAULTS, ids=[f"{f.__name__}-{p.code}" for f, p, _ in FAULTS]
)


@each_fault
def test_a_fault_is_found_under_its_name(fault, pattern, promise):
    assert ask(fault, pattern, promise).status == "broken"


@pytest.mark.full
@each_fault
def test_a_fault_is_found_by_one_promise_alone(fault, pattern, promise):
    (report,) = check(fault, [pattern], profile="quick")
    found = {result.promise for result in report.broken}
    assert promise in found, report
    assert found <= {promise} | CONSEQUENCES.get(fault, set()), report.broken


@pytest.mark.parametrize("promise", sorted(PROMISES))
def test_every_promise_has_two_faults_that_no_other_finds(promise):
    assert sum(found == promise and fault not in CONSEQUENCES for fault, _, found in FAULTS) >= 2


@pytest.mark.parametrize("right, pattern", [(paths.WindowOfPlaces, CS), (paths.FadesWithPlaces, NS)])
def test_a_hole_may_be_a_place_where_order_counts(right, pattern):
    assert ask(right, pattern, "holes").status == "not applicable"


@pytest.mark.parametrize(
    "right, pattern",
    [
        (packing.PackedRowByRow, NS),
        pytest.param(states.Cached, CC, marks=pytest.mark.full),
        pytest.param(paths.BlocksOfTheRow, CS, marks=pytest.mark.full),
    ],
)
def test_what_the_faults_were_made_from_keeps_every_promise(right, pattern):
    (report,) = check(right, [pattern], profile="quick")
    assert report.ok, report.broken
