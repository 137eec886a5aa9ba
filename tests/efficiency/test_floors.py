"""Floors lie below what the code does, and say where their numbers come from."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.efficiency import least_work
from longspan.efficiency.floors import Ceilings, Floor, ceilings, floor
from longspan.efficiency.operations import count_operations

SHAPE = {"batch": 2, "heads": 2, "dim": 16}
FORMULAS = [*least_work.KEYS, *least_work.CORES, *least_work.LAYERS]
PAIRS = [(name, pattern) for name in FORMULAS for pattern in attentions.get(name).meta.patterns]


def at(spec, pattern, length, mode="forward", **more):
    return floor(
        attentions.get(spec), Pattern.parse(pattern), length=length, mode=mode, dtype=torch.float32, **SHAPE, **more
    )


def call(spec, pattern, length, train=False):
    """The call whose floor is tested: the core where there is one, else the layer."""
    width = SHAPE["heads"] * SHAPE["dim"]
    layer = attentions.get(spec)(width, SHAPE["heads"], pattern, max_length=length, max_context=length).eval()
    if isinstance(layer, HeadwiseAttention):
        q, k, v = (torch.randn(2, 2, length, 16, requires_grad=train) for _ in "qkv")
        return lambda: _run(layer.attend(q, k, v), train)
    x = torch.randn(2, length, width, requires_grad=train)
    context = (torch.randn(2, length, width, requires_grad=train),) if pattern.cross else ()
    return lambda: _run(layer(x, *context), train)


def _run(y, train):
    if train:
        y.sum().backward()


@pytest.mark.parametrize("spec, pattern", PAIRS, ids=str)
def test_no_formula_asks_for_more_than_the_code_does(spec, pattern):
    for train in (False, True):
        found = at(spec, pattern, 192, mode="train" if train else "forward")
        assert found.source == "formula"
        least = found.operations
        if spec == "probsparse":  # its key sampling is elementwise work, which is not counted
            size = least_work.ProblemSize.of(attentions.get(spec), pattern, length=192, heads=2, dim=16)
            least -= 4 * least_work.core(attentions.get(spec), size).choices
        assert 0 < least <= 1.01 * count_operations(call(spec, pattern, 192, train))


def test_a_formula_is_of_a_core_where_there_are_heads_and_of_a_layer_elsewhere():
    """A formula in the wrong table would be ignored, or would count its projections twice."""
    headwise = {name: issubclass(attentions.get(name).cls, HeadwiseAttention) for name in FORMULAS}
    assert all(headwise[name] for name in (*least_work.KEYS, *least_work.CORES))
    assert not any(headwise[name] for name in least_work.LAYERS)
    assert len(FORMULAS) == len(set(FORMULAS))


@pytest.mark.parametrize("spec", ["softmax(kernel=plain)", "linear", "linformer", "performer", "abc", "fnet"])
def test_where_the_code_does_no_more_than_needed_formula_and_count_agree(spec):
    pattern = Pattern.NONCAUSAL_SELF
    counted, least = count_operations(call(spec, pattern, 256)), at(spec, pattern, 256).operations
    tolerance = 0.51 if spec == "fnet" else 0.07  # fnet: a complex FFT of real numbers; others: columns of ones
    assert math.isclose(counted, least, rel_tol=tolerance)


@pytest.mark.parametrize("mode, tensors", [("forward", 1), ("train", 2)])
def test_who_ignores_the_tokens_need_only_write_zeros(mode, tensors):
    assert at("none", Pattern.NONCAUSAL_SELF, 256, mode).bytes == tensors * 2 * 256 * 32 * 4


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 90),
    causal=st.booleans(),
    spec=st.sampled_from(
        [
            "softmax",
            "local(window=5)",
            "local(window=7,shape=blocks,overlap=3)",
            "longformer(window=8,global_tokens=3)",
            "bigbird(block=4,random=2)",
            "sparse_transformer(stride=6,summary=2)",
            "sparse_transformer(stride=5,kind=strided)",
            "sparse_transformer(stride=6,summary=2,part=far)",
            "sparse_transformer(stride=6,part=near)",
            "logsparse",
            "logsparse(local=3,restart=7)",
            "etc(radius=3,global_tokens=4,stride=7)",
            "etc(radius=5,global_tokens=40)",
        ]
    ),
)
def test_the_keys_of_a_query_are_those_with_a_weight(n, causal, spec):
    """Compared with the mechanism's own attention matrix, or for local attention with its definition."""
    mechanism = attentions.get(spec)
    pattern = Pattern.CAUSAL_SELF if causal else Pattern.NONCAUSAL_SELF
    layer = mechanism(8, 2, pattern, max_length=n).eval()
    q, k = torch.randn(1, 2, n, 4), torch.randn(1, 2, n, 4)
    weights = layer.weights(q, k)
    if weights is None:  # unit vectors as values give the matrix
        weights = layer.attend(q, k, torch.eye(n).expand(1, 2, n, n))
    seen = (weights[0, 0] > 0).sum(dim=-1).numpy()
    size = least_work.ProblemSize.of(mechanism, pattern, length=n, heads=2, dim=4)
    found = least_work.KEYS[mechanism.target](size)
    if mechanism.target == "bigbird":  # a partial last block counts as a full one
        assert (found >= seen).all()
        found, seen = found[: n // 4 * 4], seen[: n // 4 * 4]
        if n % 4:
            return
    np.testing.assert_array_equal(found, seen)


def test_the_bytes_of_a_core_are_four_tensors_forward_and_eleven_in_training():
    tensor = 2 * 2 * 16 * 100 * 4
    assert at("linear", "NS", 100).bytes == 4 * tensor
    assert at("linear", "NS", 100, mode="train").bytes == 11 * tensor


def test_a_linear_core_of_16384_tokens_takes_62_microseconds_where_4_3_terabytes_move_in_a_second():
    sizes = {"batch": 4, "heads": 8, "dim": 64, "length": 16384, "dtype": torch.bfloat16}
    h200 = Ceilings(4.3e12, 700e12, "as an H200 does it")
    found = floor(attentions.get("linear"), Pattern.NONCAUSAL_SELF, mode="forward", **sizes)
    assert found.bound(h200) == "memory"
    assert found.seconds(h200) == pytest.approx(62e-6, rel=0.02)
    exact = floor(attentions.get("softmax"), Pattern.NONCAUSAL_SELF, mode="forward", **sizes)
    assert exact.bound(h200) == "compute"
    assert exact.operations == 4 * 4 * 8 * 64 * 16384**2
    assert exact.seconds(h200) < 4777e-6  # the measured time


def test_causal_attention_needs_half_and_training_three_and_a_half_times_as_much():
    full, half = at("softmax", "NS", 1000), at("softmax", "CS", 1000)
    assert half.operations / full.operations == pytest.approx(0.5, abs=1e-3)
    assert at("softmax", "NS", 1000, mode="train").operations == 3.5 * full.operations


def test_a_mechanism_without_a_formula_has_the_bytes_and_its_own_count():
    assert at("lara", "NS", 64, counted=12345) == Floor(4 * 2 * 2 * 16 * 64 * 4, 12345, "count")
    assert at("lara", "NS", 64).source == "bytes alone"


def test_a_plug_in_has_a_floor(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from longspan.attentions import AttentionMeta, HeadwiseAttention, Pattern\n"
        "class Mine(HeadwiseAttention):\n"
        "    meta = AttentionMeta(title='Mine', paper='none', family='toy', cost='n',\n"
        "                         patterns=(Pattern.NONCAUSAL_SELF,))\n"
        "    def attend(self, q, k, v, *, key_mask=None, query_mask=None):\n"
        "        return q @ (k.mT @ v)\n"
    )
    spec = f"{tmp_path}/mine.py:Mine"
    counted = count_operations(call(spec, Pattern.NONCAUSAL_SELF, 32))
    assert counted == 2 * 2 * 2 * (2 * 32 * 16 * 16)
    assert at(spec, "NS", 32, counted=counted).operations == counted


def test_a_layer_moves_its_input_its_output_and_its_weights():
    tokens, weights = 2 * 50 * 32, 4 * (32 * 32 + 32)
    found = at("softmax", "NS", 50, module="layer", parameters=weights)
    assert found.bytes == 4 * (2 * tokens + weights)
    assert found.operations == at("softmax", "NS", 50).operations + 2 * 4 * 2 * 50 * 32 * 32
    trained = at("softmax", "NS", 50, mode="train", module="layer", parameters=weights)
    assert trained.bytes == 4 * (5 * tokens + 3 * weights)
    assert at("softmax", "NS", 50, module="block", counted=7).source == "count"


def test_a_step_reads_the_keys_it_looks_at_or_its_state():
    token = 2 * 2 * 16 * 4
    assert at("softmax", "CS", 500, mode="decode").bytes == 4 * token + 2 * 500 * token
    assert at("local(window=8)", "CS", 500, mode="decode").bytes == 4 * token + 2 * 8 * token
    assert at("softmax", "CS", 500, mode="decode").operations == 2 * 2 * 4 * 16 * 500
    step = at("linear", "CS", 500, mode="decode", state_bytes=999)
    assert (step.bytes, step.operations) == (4 * token + 999, 2 * 2 * 2 * 2 * 16 * 17)
    with pytest.raises(UsageError, match="state_bytes"):
        at("linear", "CS", 500, mode="decode")
    with pytest.raises(UsageError, match="no decoding"):
        at("linear", "NS", 500, mode="decode")


def test_the_ceilings_of_this_machine_are_positive_and_say_how_they_were_found(monkeypatch):
    monkeypatch.setattr("longspan.efficiency.floors.SIDE", {"cpu": 64})
    monkeypatch.setattr("longspan.efficiency.floors.COPIED", {"cpu": 2**16})
    found = ceilings("cpu", torch.float32)
    assert min(found.bytes_per_second, found.operations_per_second) > 0
    assert "64 x 64 matrices of float32" in found.method
    assert "wall clock" in found.method
