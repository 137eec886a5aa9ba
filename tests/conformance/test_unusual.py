"""Unusual but correct mechanisms are not refused."""

import pytest

from longspan.conformance import check
from tests.conformance.unusual import MECHANISMS, ALiBi, GatedLinear, MultiScalePooling, ShortConvolution, TopK

# one of each kind: a distance bias, a recurrence, a pooling, a convolution, a choice of keys
QUICK = [ALiBi, GatedLinear, MultiScalePooling, ShortConvolution, TopK]
CASES = [(mechanism, pattern) for mechanism in MECHANISMS for pattern in mechanism.meta.patterns]
NAMES = [f"{mechanism.__name__}-{pattern.code}" for mechanism, pattern in CASES]


@pytest.mark.parametrize("mechanism", QUICK, ids=lambda mechanism: mechanism.__name__)
def test_an_unusual_mechanism_keeps_every_promise(mechanism):
    (report,) = check(mechanism, mechanism.meta.patterns[-1:], profile="quick")
    assert report.ok, report.broken


@pytest.mark.full
@pytest.mark.parametrize("profile", ["quick", "full"])
@pytest.mark.parametrize("mechanism, pattern", CASES, ids=NAMES)
def test_an_unusual_mechanism_keeps_every_promise_in_every_pattern(mechanism, pattern, profile):
    (report,) = check(mechanism, [pattern], profile=profile)
    assert report.ok, report.broken
