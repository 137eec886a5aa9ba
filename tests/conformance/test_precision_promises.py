"""Promises about precision: bfloat16 may round and choose differently, not lose tokens; NaN is no agreement."""

import pytest
import torch

from longspan.attentions import Mechanism, Pattern
from longspan.conformance import check
from longspan.conformance.difference import difference
from longspan.conformance.precision import bfloat16
from longspan.conformance.subject import Subject
from tests.conformance import faults_in_bfloat16 as faults
from tests.conformance import faults_with_nan as nan
from tests.conformance.one_promise import ask
from tests.conformance.right import Plain, declare
from tests.conformance.unusual import TopK

NS, CS = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF


@pytest.mark.parametrize("keys", [1, 2, 8, 32])
@pytest.mark.parametrize("pattern", [NS, CS])
def test_a_right_choice_of_keys_is_not_refused_in_bfloat16(keys, pattern):
    outcome = bfloat16.test(Subject(Mechanism(TopK, {"keys": keys}, "unusual:TopK"), pattern))
    assert outcome.status == "kept", outcome


class GradientOnlyInReference(Plain):
    """The fast path leaves out a parameter that its reference scales by, at the value where that changes nothing."""

    meta = declare(exact=False)

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.scale = torch.nn.Parameter(torch.ones(heads, 1, 1))

    def reference(self, q, k, v, **masks):
        return super().attend(q * self.scale, k, v, **masks)


FAULTS = [
    (faults.SumsInBfloat16, CS, "bfloat16"),
    (faults.CountsInBfloat16, CS, "bfloat16"),
    (faults.CoarseChoice, NS, "bfloat16"),
    (nan.NanInSingle, NS, "bfloat16"),
    (nan.NanWithDropout, NS, "dropout declaration"),
    (GradientOnlyInReference, NS, "reference agreement"),
]
each_fault = pytest.mark.parametrize("faulty, pattern, promise", FAULTS)


@each_fault
def test_a_loss_of_precision_is_found_under_its_name(faulty, pattern, promise):
    assert ask(faulty, pattern, promise).status == "broken"


@pytest.mark.full
@each_fault
def test_a_loss_of_precision_is_found_by_one_promise_alone(faulty, pattern, promise):
    (report,) = check(faulty, [pattern], profile="quick")
    assert {result.promise for result in report.broken} == {promise}, report.broken


@pytest.mark.parametrize("found", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("expected", [1.0, torch.nan, torch.inf])
def test_what_is_not_finite_is_never_close(found, expected):
    for one, other in ((found, expected), (expected, found)):
        assert difference(torch.tensor([0.0, one]), torch.tensor([0.0, other])) == torch.inf
