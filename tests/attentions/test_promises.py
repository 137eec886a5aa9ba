"""What every attention promises, whatever its paper; the promises themselves live in longspan/conformance."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from longspan import attentions
from longspan.attentions import Pattern
from longspan.conformance import check
from tests.attentions.cases import CASES, LARGER, each_case
from tests.conformance.one_promise import AT_LENGTH, WITHIN_A_HUNDRED, asking_only

# One inverts a matrix of 128 landmarks for every row and head, however short, one hashes every token 32 times, and one
# has 32 buckets of 64 keys in cross attention, which takes most of their time in a check. Quick tests check them with
# smaller sizes in as many patterns as a default, the long tests as they are.
HEAVY = {
    "scatterbrain": "scatterbrain(window=5, features=8, buckets=4)",
    "skyformer": "skyformer(landmarks=9, accumulation=2)",
    "yoso": "yoso(hashes=3, bits=3)",
}


def quick(spec: str, pattern: Pattern) -> bool:
    """For a default, all patterns but NC where CC is declared too; for other specs, the last self-attention pattern."""
    patterns = attentions.get(spec).meta.patterns
    if spec in HEAVY:
        return False
    if spec in CASES or spec in HEAVY.values():
        return pattern is not Pattern.NONCAUSAL_CROSS or Pattern.CAUSAL_CROSS not in patterns
    return pattern is [one for one in patterns if not one.cross][-1]


def at_length(spec: str, pattern: Pattern) -> bool:
    """Whether the quick test includes checks of a thousand tokens: for defaults in self attention.

    The same code at other sizes, with other options or in cross attention is tested within a hundred tokens.
    """
    return (spec in CASES or spec in HEAVY.values()) and not pattern.cross


@pytest.mark.parametrize(
    "spec, pattern",
    [
        pytest.param(spec, pattern, marks=[] if quick(spec, pattern) else pytest.mark.full, id=f"{spec}-{pattern.code}")
        for spec, pattern in each_case()
    ],
)
def test_every_mechanism_keeps_its_promises(spec, pattern):
    with nullcontext() if at_length(spec, pattern) else asking_only(*WITHIN_A_HUNDRED):
        (report,) = check(spec, [pattern], profile="quick")
    broken = {f.promise: f.detail for f in report.broken}
    assert broken.keys() == ({"parameter overhead"} if spec in LARGER else set()), broken
    assert report.status_of("holes") == "kept"  # our mechanisms declare which holes count as positions


@pytest.mark.full
@pytest.mark.parametrize("spec, pattern", [(spec, p) for spec, p in each_case() if not at_length(spec, p)])
def test_other_strings_and_contexts_keep_their_promises_at_length(spec, pattern):
    with asking_only(*AT_LENGTH):
        (report,) = check(spec, [pattern], profile="quick")
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
