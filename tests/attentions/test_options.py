"""Every option in use keeps the promises of its mechanism, or belongs to a twin, which is never ranked.

Options are collected from the table of cases, tasks, published tables, documentation and golden vectors. Sizes
(integers, and shapes of them) are left out: they change how much a mechanism computes, not whether it keeps its
promises. So are the cases of the table, which `test_promises.py` checks in every pattern. Every other value of an
option is checked here in one pattern (causal if there is one, since it makes the most promises) and within a hundred
tokens; `make test-full` checks all combinations in all patterns, and at length.
"""

import importlib
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from longspan import attentions
from longspan.attentions import Mechanism, Pattern
from longspan.conformance import check
from longspan.core.errors import UsageError
from longspan.core.spec import Spec
from tests.attentions import parity
from tests.attentions.cases import CASES
from tests.conformance.one_promise import AT_LENGTH, WITHIN_A_HUNDRED, asking_only

ROOT = Path(__file__).parents[2]
WHERE = ["tests/attentions/cases.py", "longspan/tasks/*.py", "longspan/published/*.json", "docs/*.md", "README.md"]
WRITTEN = re.compile(rf"\b(?:{'|'.join(attentions.names())})\([a-z_]+ *=[^(){{}}]*\)")
FOLDER = Path(attentions.__file__).parent

# Options with which released code breaks a promise; only twins in attentions/released/ may have that behaviour.
BUG_COMPATIBLE = [
    ("cosformer", "length"),
    ("lara", "segments"),
    ("longshort", "memory"),
    ("longshort", "relative"),
    ("nystromformer", "segments"),
    ("nystromformer", "start"),
    ("probsparse", "released"),
    ("reformer", "mode"),
]


# Half of a published pattern, for heads that alternate: alone it sees almost nothing, by design.
PARTS = ['sparse_transformer(kind="strided", part="far")', 'sparse_transformer(kind="strided", part="near")']
BY_OTHER_RULES = {"parameter overhead"}  # boards put larger networks on the free track


def written() -> set[str]:
    """Specs written in files, and those that golden vectors are replayed with."""
    texts = (path.read_text() for where in WHERE for path in ROOT.glob(where))
    found = {spec for text in texts for spec in WRITTEN.findall(text.replace('\\"', '"'))}  # JSON escapes quotes
    for path in parity.vectors():
        vector = parity.read(path)
        replay = importlib.import_module(f"tests.attentions.golden_cases.{vector.meta['mechanism']}").replay(vector)
        found |= set() if isinstance(replay, str) else {replay.mechanism}
    return found


def without_sizes(spec: str) -> str:
    mechanism = attentions.get(spec)
    options = {name: value for name, value in mechanism.options.items() if type(value) not in (int, tuple)}
    return str(Spec(mechanism.target, options))


def clean(mechanism: Mechanism) -> bool:
    return (FOLDER / f"{mechanism.target}.py").is_file()


def quick(specs: list[str]) -> set[tuple[str, Pattern]]:
    """The largest combinations that together cover every value, each in one pattern."""
    chosen, seen = set(), set()
    for mechanism in sorted(map(attentions.get, specs), key=lambda one: -len(one.options)):
        values = {(mechanism.target, *option) for option in mechanism.options.items()}
        if values - seen:
            patterns = mechanism.meta.patterns
            chosen.add((str(mechanism), Pattern.CAUSAL_SELF if Pattern.CAUSAL_SELF in patterns else patterns[0]))
        seen |= values
    return chosen


def patterns_of(spec: str) -> list[Pattern]:
    """The patterns it can be built in: some options refuse some patterns."""

    def can_be_built(pattern: Pattern) -> bool:
        try:
            attentions.get(spec)(16, 2, pattern, max_length=64, max_context=64)
        except UsageError:
            return False
        return True

    return [pattern for pattern in attentions.get(spec).meta.patterns if can_be_built(pattern)]


CHECKED = {str(attentions.get(spec)) for specs in CASES.values() for spec in specs}
SPECS = sorted({without_sizes(spec) for spec in written()} - CHECKED)
VARIANTS = [spec for spec in SPECS if "(" in spec and clean(attentions.get(spec)) and spec not in PARTS]
EACH, QUICK = [(spec, pattern) for spec in VARIANTS for pattern in patterns_of(spec)], quick(VARIANTS)


@pytest.mark.parametrize(
    "spec, pattern",
    [pytest.param(s, p, marks=[] if (s, p) in QUICK else pytest.mark.full, id=f"{s}-{p.code}") for s, p in EACH],
)
def test_an_option_keeps_the_promises_or_belongs_to_a_twin(spec, pattern):
    assert_kept(spec, pattern, WITHIN_A_HUNDRED)


@pytest.mark.full
@pytest.mark.parametrize("spec, pattern", EACH, ids=[f"{spec}-{pattern.code}" for spec, pattern in EACH])
def test_an_option_keeps_the_promises_at_length(spec, pattern):
    assert_kept(spec, pattern, AT_LENGTH)


def assert_kept(spec: str, pattern: Pattern, promises: Iterable[str]) -> None:
    with asking_only(*promises):
        (report,) = check(spec, [pattern], profile="quick")
    assert not [f"{f.promise}: {f.detail}" for f in report.broken if f.promise not in BY_OTHER_RULES]


def test_performer_adds_no_eps_to_softmax_features():
    with pytest.raises(UsageError, match="google_performer does"):
        attentions.get("performer(eps=1e-4)")(8, 2, Pattern.NONCAUSAL_SELF)


@pytest.mark.parametrize("name, option", BUG_COMPATIBLE)
def test_a_clean_file_has_no_bug_compatible_option(name, option):
    assert option not in {one.name for one in attentions.get(name).available_options()}


@pytest.mark.parametrize("former, twin", list(attentions.FORMER_OPTIONS.items()))
def test_a_former_option_names_a_twin(former, twin):
    name, option, value = former
    assert attentions.get(str(Spec(name, {option: value}))).target == twin
    with pytest.raises(UsageError, match=f"has no option {option!r}"):
        attentions.get(str(Spec(name, {option: not value})))


@pytest.mark.parametrize("name", attentions.names())
def test_twins_and_only_twins_are_marked_as_never_ranked(name):
    mechanism = attentions.get(name)
    assert mechanism.meta.fidelity == (FOLDER / "released" / f"{name}.py").is_file()
