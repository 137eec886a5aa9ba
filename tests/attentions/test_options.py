"""Every option in use keeps the promises of its mechanism, or belongs to a twin, which is never ranked.

Options are collected from the table of cases, tasks, published tables, documentation and golden vectors. Sizes
(integers) are left out: they change how much a mechanism computes, not whether it keeps its promises.
"""

import importlib
import re
from pathlib import Path

import pytest

from longspan import attentions
from longspan.attentions import Mechanism
from longspan.conformance import check
from longspan.core.errors import UsageError
from longspan.core.spec import Spec
from tests.attentions import parity

ROOT = Path(__file__).parents[2]
WHERE = ["tests/attentions/cases.py", "longspan/tasks/*.py", "longspan/published/*.json", "docs/*.md", "README.md"]
WRITTEN = re.compile(rf"\b(?:{'|'.join(attentions.names())})\([a-z_]+ *=[^(){{}}]*\)")
FOLDER = Path(attentions.__file__).parent

# Options with which released code breaks a promise: if at all, a twin in attentions/released/ has that behaviour.
BUG_COMPATIBLE = [
    ("cosformer", "length"),
    ("lara", "segments"),
    ("longshort", "memory"),
    ("longshort", "relative"),
    ("nystromformer", "segments"),
    ("nystromformer", "start"),
    ("performer", "eps"),
    ("probsparse", "released"),
    ("reformer", "mode"),
]


# Half of a published pattern, for heads that take turns: alone it sees next to nothing, and is not meant to.
PARTS = ['sparse_transformer(kind="strided", part="far")', 'sparse_transformer(kind="strided", part="near")']
BY_OTHER_RULES = {"parameter overhead"}  # boards put larger networks on the free track


def written() -> set[str]:
    """Specs that stand in files, and those that golden vectors are replayed with."""
    found = {spec for where in WHERE for path in ROOT.glob(where) for spec in WRITTEN.findall(path.read_text())}
    for path in parity.vectors():
        vector = parity.read(path)
        replay = importlib.import_module(f"tests.attentions.golden_cases.{vector.meta['mechanism']}").replay(vector)
        found |= set() if isinstance(replay, str) else {replay.mechanism}
    return found


def without_sizes(spec: str) -> str:
    mechanism = attentions.get(spec)
    options = {name: value for name, value in mechanism.options.items() if type(value) is not int}
    return str(Spec(mechanism.target, options))


def clean(mechanism: Mechanism) -> bool:
    return (FOLDER / f"{mechanism.target}.py").is_file()


SPECS = sorted({without_sizes(spec) for spec in written()})
VARIANTS = [spec for spec in SPECS if "(" in spec and clean(attentions.get(spec)) and spec not in PARTS]


@pytest.mark.parametrize("spec", VARIANTS)
def test_an_option_keeps_the_promises_or_belongs_to_a_twin(spec):
    patterns = attentions.get(spec).meta.patterns
    for report in check(spec, patterns[:2], profile="quick"):
        broken = [f"{f.promise}: {f.detail}" for f in report.broken if f.promise not in BY_OTHER_RULES]
        assert not broken, f"{report.pattern}: " + "\n".join(broken)


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
