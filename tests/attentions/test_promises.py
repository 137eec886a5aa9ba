"""What every attention promises, whatever its paper; the promises themselves live in longspan/conformance."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from longspan import attentions
from longspan.attentions import Pattern
from longspan.conformance import check
from longspan.conformance.promises import PROMISES
from tests.attentions.cases import CASES, LARGER, each_case
from tests.conformance.one_promise import asking_only

# One inverts a matrix of 128 landmarks for every row and head, however short, the other hashes every token 32 times,
# which is most of their time in a check: with fewer of them they are checked in as many patterns as a default, and as
# they are in the long tests.
HEAVY = {"skyformer": "skyformer(landmarks=9, accumulation=2)", "yoso": "yoso(hashes=3, bits=3)"}

# A string that only gives other numbers is the same code at other sizes, which shows within a hundred tokens. What
# takes a thousand is asked of the default, and of these strings in the long tests.
AT_LENGTH = {
    *("declared cost", "packed cost", "exact limit", "finite at length", "derivative at length"),
    *("no future leak at length", "prefix = full at length", "step = parallel at length"),
}
WITHIN_A_HUNDRED = [one.name for one in PROMISES if one.name not in AT_LENGTH]


def quick(spec: str, pattern: Pattern) -> bool:
    """Of a default all but cross attention that is causal too, of another string the last pattern for one sequence."""
    patterns = attentions.get(spec).meta.patterns
    if spec in HEAVY:
        return False
    if spec in CASES or spec in HEAVY.values():
        return pattern is not Pattern.NONCAUSAL_CROSS or Pattern.CAUSAL_CROSS not in patterns
    return pattern is [one for one in patterns if not one.cross][-1]


def only_numbers(spec: str) -> bool:
    """Whether the options are sizes, and no choice of another path; of a heavy default they stand for the default."""
    options = attentions.get(spec).options.values()
    return bool(options) and all(type(value) is int for value in options) and spec not in HEAVY.values()


@pytest.mark.parametrize(
    "spec, pattern",
    [
        pytest.param(spec, pattern, marks=[] if quick(spec, pattern) else pytest.mark.full, id=f"{spec}-{pattern.code}")
        for spec, pattern in each_case()
    ],
)
def test_every_mechanism_keeps_its_promises(spec, pattern):
    with asking_only(*WITHIN_A_HUNDRED) if only_numbers(spec) else nullcontext():
        (report,) = check(spec, [pattern], profile="quick")
    broken = {f.promise: f.detail for f in report.broken}
    assert broken.keys() == ({"parameter overhead"} if spec in LARGER else set()), broken
    assert report.status_of("holes") == "kept"  # of ours, which hole is a place is declared, not found


@pytest.mark.full
@pytest.mark.parametrize("spec", [spec for specs in CASES.values() for spec in specs if only_numbers(spec)])
def test_other_numbers_change_nothing_at_length(spec):
    with asking_only(*AT_LENGTH):
        for report in check(spec, profile="quick"):
            assert report.ok, report.broken


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("spec", CASES)
def test_every_mechanism_keeps_its_promises_at_length(spec, dtype):
    for report in check(spec, dtype=dtype, profile="full"):
        assert report.ok, "\n".join(f"{report.pattern}, {f.promise}: {f.detail}" for f in report.broken)


def test_every_mechanism_of_the_package_is_in_the_table():
    folder = Path(attentions.__file__).parent
    built_in = {name for name in attentions.names() if (folder / f"{name}.py").is_file()}
    assert built_in == set(CASES)
