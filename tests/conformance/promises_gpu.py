"""Promises checked only on a GPU can be broken, and each fault is found under its name. Run it with `make test-gpu`."""

import pytest

from longspan.attentions import Mechanism, Pattern
from longspan.conformance.check import _find
from longspan.conformance.compiled import captured, compiled
from longspan.conformance.half import bfloat16_weights, float16
from longspan.conformance.subject import Subject
from tests.conformance import faults_when_compiled as faults
from tests.conformance.right import Plain

PROMISES = (compiled, captured, float16, bfloat16_weights)
FAULTS = {
    faults.Breaks: "torch.compile",
    faults.OtherwiseCompiled: "torch.compile",
    faults.Synchronises: "CUDA graph",
    faults.RemembersTheMask: "CUDA graph",
    faults.SumsInHalf: "float16",
    faults.MasksWithManyZeros: "float16",
    faults.SinglePrecisionBuffer: "bfloat16 weights",
    faults.AlwaysSingle: "bfloat16 weights",
    faults.LosesItsSum: "bfloat16 weights",
    faults.FirstTokenTwice: "bfloat16 weights",
}


def broken(cls) -> list[str]:
    subject = Subject(Mechanism(cls, {}, cls.__name__), Pattern.CAUSAL_SELF, "cuda")
    return [promise.name for promise in PROMISES if _find(promise, subject).status == "broken"]


def test_a_right_mechanism_keeps_them():
    assert broken(Plain) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_under_its_name(fault):
    assert broken(fault) == [FAULTS[fault]]
