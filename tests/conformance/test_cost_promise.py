"""The promise about cost: it names the pass and the operator, tells n log n from n, and sees what torch does not."""

import pytest
import torch

from longspan.attentions import Mechanism
from longspan.conformance import check
from longspan.conformance.cost import declared_cost
from longspan.conformance.counting import count
from longspan.conformance.subject import Subject
from tests.conformance import faults_in_cost as faults


@pytest.mark.parametrize(
    "faulty, said",
    [
        (faults.LogRounds, "of aten.mul grows as n log n"),
        (faults.FourierConvolution, "of aten._fft_c2c grows as n log n"),
        (faults.QuadraticBackward, "the backward of aten.bmm grows as n^2.0"),
        (faults.QuadraticInNumpy, "processor time outside of torch's operators"),
        (faults.QuadraticInPython, "processor time outside of torch's operators"),
        (faults.QuadraticOperator, "processor time outside of torch's operators"),
    ],
)
def test_a_cost_above_the_declared_one_is_found_and_named(faulty, said):
    (report,) = check(faulty, profile="quick")
    (result,) = report.broken
    assert result.promise == "declared cost"
    assert said in result.detail


@pytest.mark.parametrize("right", ["n log n", "n^2"])
def test_who_declares_a_logarithm_is_not_refused(right):
    class Declared(faults.LogRounds):
        meta = faults.declare(exact=False, cost=right, patterns=faults.LogRounds.meta.patterns)

    pattern = Declared.meta.patterns[0]
    assert (
        declared_cost.test(Subject(Mechanism(Declared, {}, "faults:Declared"), pattern, profile="quick")).status
        == "kept"
    )


def test_operations_are_told_apart_by_pass_and_operator():
    x = torch.ones(8, 4, requires_grad=True)
    counted = count(lambda: x @ x.mT, lambda y: y.sum().backward())
    assert counted.by_operator["forward of aten.mm"] == 2 * 8 * 8 * 4 + 64
    assert counted.by_operator["backward of aten.mm"] == 2 * (2 * 8 * 8 * 4 + 32)
    assert counted.operations == sum(counted.by_operator.values())
