"""A built-in keeps its identity through renames and faster kernels, and loses it when its outputs change.

python -m tests.runs.test_fingerprint        # rewrites fingerprints.json after a version was raised
"""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from longspan import attentions
from longspan.attentions import Mechanism
from longspan.results.code_identity import same_code, same_outputs
from longspan.runs import fingerprint as fingerprints
from longspan.runs.fingerprint import code_identity, fingerprint
from tests.attentions.cases import CASES

TABLE = Path(__file__).with_name("fingerprints.json")
NO_NUMBERS = {"authors_soft"}  # takes whole images; a fingerprint has only a few tokens
BUILTINS = sorted({*attentions.registry._own(), *(spec for specs in CASES.values() for spec in specs)})


@pytest.fixture(autouse=True)
def no_cache():
    fingerprints._cached.cache_clear()
    yield
    fingerprints._cached.cache_clear()


@pytest.fixture
def truncated_as_in_torch_2_11(monkeypatch):
    """`nn.init.trunc_normal_` from one uniform draw; torch 2.13 redraws normals until they are within bounds."""

    def trunc_normal_(tensor, mean=0.0, std=1.0, a=-2.0, b=2.0):
        low, high = (math.erf((bound - mean) / (std * math.sqrt(2))) for bound in (a, b))
        with torch.no_grad():
            return tensor.uniform_(low, high).erfinv_().mul_(std * math.sqrt(2)).add_(mean).clamp_(a, b)

    monkeypatch.setattr(torch.nn.init, "trunc_normal_", trunc_normal_)


def recorded():
    return json.loads(TABLE.read_text())


@pytest.mark.usefixtures("truncated_as_in_torch_2_11")
@pytest.mark.parametrize("spec", BUILTINS)
def test_outputs_change_only_with_the_version(spec):
    before, now = recorded().get(spec), code_identity(attentions.get(spec))
    remedy = "run python -m tests.runs.test_fingerprint"
    assert before is not None, f"{spec} is new; {remedy}"
    meta = attentions.get(spec).meta
    expected = set() if spec in NO_NUMBERS else set(meta.patterns)
    expected |= {f"{pattern}, carried" for pattern in expected if meta.carries}
    assert now.get("mechanism_fingerprint", {}).keys() == expected
    assert before["mechanism_version"] == now["mechanism_version"], f"{spec} has a new version; {remedy}"
    assert same_code(before, now), f"{spec} computes something else: raise meta.version, then {remedy}"


def test_the_table_has_no_mechanism_that_is_gone():
    assert list(recorded()) == BUILTINS


def test_different_mechanisms_and_options_have_different_fingerprints():
    softmax, plain, linear, local = map(
        attentions.get, ("softmax", "softmax(kernel=plain)", "linear", "local(window=8)")
    )
    assert same_outputs(fingerprint(softmax), fingerprint(plain))  # another kernel, the same function
    assert not same_outputs(fingerprint(softmax), fingerprint(linear))
    assert not same_outputs(fingerprint(local), fingerprint(attentions.get("local")))
    for name in ("bigbird", "longformer", "sparse_transformer", "sinkhorn", "nystromformer"):  # beyond the small case
        assert not same_outputs(fingerprint(softmax), fingerprint(attentions.get(name))), name


@pytest.mark.parametrize("name", ["softmax", "linear", "performer", "s4d"])
def test_a_changed_formula_without_a_new_version_is_noticed(name, monkeypatch):
    mechanism = attentions.get(name)
    before, forward = code_identity(mechanism), mechanism.cls.forward
    fingerprints._cached.cache_clear()
    monkeypatch.setattr(mechanism.cls, "forward", lambda self, x, *a, **k: forward(self, 1.001 * x, *a, **k))
    assert not same_code(before, code_identity(mechanism))


def test_a_changed_gradient_is_noticed(monkeypatch):
    mechanism = attentions.get("linear")
    before, forward = code_identity(mechanism), mechanism.cls.forward
    fingerprints._cached.cache_clear()
    half = lambda x: 0.5 * x + 0.5 * x.detach()  # noqa: E731
    monkeypatch.setattr(mechanism.cls, "forward", lambda self, x, *a, **k: forward(self, half(x), *a, **k))
    now = code_identity(mechanism)
    assert (
        now["mechanism_fingerprint"]["causal_self"]["output"]
        == before["mechanism_fingerprint"]["causal_self"]["output"]
    )
    assert not same_code(before, now)


@pytest.mark.parametrize("name, part", [("luna", "p"), ("transformer_xl", "x"), ("compressive_transformer", "old")])
def test_what_is_carried_otherwise_is_noticed(name, part, monkeypatch):
    """`forward` stays as it is, so that only what was carried is seen to change."""
    mechanism = attentions.get(name)
    before, carried = code_identity(mechanism), mechanism.cls.carried
    fingerprints._cached.cache_clear()

    def weaker(self, x, *inputs, carry=None, **masks):
        y, carry = carried(self, x, *inputs, carry=carry, **masks)
        return y, carry if carry is None else replace(carry, **{part: 0.5 * getattr(carry, part)})

    monkeypatch.setattr(mechanism.cls, "carried", weaker)
    now = code_identity(mechanism)
    assert not same_code(before, now)
    old = before["mechanism_fingerprint"]  # of cards from before there were numbers of `carried`
    assert same_code(before | {"mechanism_fingerprint": {p.value: old[p.value] for p in mechanism.meta.patterns}}, now)


def test_a_built_in_that_is_moved_renamed_and_reformatted_is_the_same_code(tmp_path, monkeypatch):
    """A copy under another module and class name and with other comments."""
    original = attentions.get("linear")
    text = Path(attentions.registry.find("linear").__module__.replace(".", "/") + ".py")
    source = (Path(attentions.__file__).parents[2] / text).read_text()
    name = original.cls.__name__
    place = tmp_path / "moved.py"
    place.write_text(source.replace(f"class {name}(", "# moved\n\n\nclass Renamed("))
    moved = attentions.get(f"{place}:Renamed").cls
    monkeypatch.setattr(moved, "__module__", "longspan.attentions.moved")  # where a built-in would live
    assert same_code(code_identity(original), code_identity(Mechanism(moved, {}, "linear")))


def test_an_edited_plug_in_is_other_code(tmp_path):
    source = Path(attentions.__file__).with_name("linear.py")
    names = []
    for folder in ("one", "two", "three"):
        (tmp_path / folder).mkdir()
        names.append(shutil.copy(source, tmp_path / folder / "mine.py"))
    Path(names[2]).write_text(Path(names[2]).read_text() + "# a comment\n")
    cls = attentions.registry.find("linear").__name__
    one, two, three = (code_identity(attentions.get(f"{name}:{cls}")) for name in names)
    assert one.keys() == {"mechanism_sha256"}
    assert same_code(one, two)
    assert not same_code(one, three)


def test_it_is_cached_and_leaves_the_random_state_alone():
    fingerprints._cached.cache_clear()
    state = torch.get_rng_state()
    first = fingerprint(attentions.get("performer"))
    assert torch.equal(torch.get_rng_state(), state)
    assert fingerprint(attentions.get("performer")) is first
    with torch.no_grad():
        fingerprints._cached.cache_clear()
        assert fingerprint(attentions.get("performer")) == first


def test_options_that_cannot_run_on_a_cpu_have_a_version_alone():
    assert code_identity(attentions.get("softmax(kernel=cudnn)")) == {"mechanism_version": 1}


def _write() -> None:
    from longspan.core import atomic

    atomic.write_json(TABLE, {spec: code_identity(attentions.get(spec)) for spec in BUILTINS})


if __name__ == "__main__":
    _write()
