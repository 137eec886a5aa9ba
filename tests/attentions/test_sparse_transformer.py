"""The Sparse Transformer: both patterns pair by pair, a stride known at construction, and the masks of other code."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from tests.attentions.agreement import headwise
from tests.attentions.allowed import assert_attend_is, assert_steps_continue
from tests.attentions.parity import SHIPPED

PATTERNS = [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF]


def fixed(stride, summary, bands, part):
    def sees(row, head, i, j):
        end = stride - head % bands * summary
        near, far = i // stride == j // stride, end - summary <= j % stride < end
        return {"both": near or far, "near": near, "far": far}[part]

    return sees


def strided(stride, part):
    def sees(row, head, i, j):
        near, far = abs(i - j) < stride, (i - j) % stride == 0
        return {"both": near or far, "near": near, "far": far}[part]

    return sees


@given(
    n=st.integers(1, 26),
    stride=st.integers(1, 9),
    kind=st.sampled_from(["fixed", "strided"]),
    part=st.sampled_from(["both", "near", "far"]),
    pattern=st.sampled_from(PATTERNS),
    seed=st.integers(0, 1_000),
)
@settings(deadline=None, max_examples=30)
def test_outputs_gradients_and_weights_follow_the_pattern(n, stride, kind, part, pattern, seed):
    bands = 1 + seed % 2 if stride > 1 else 1
    summary = 1 + seed % (stride // bands)
    spec = f"sparse_transformer(kind={kind}, stride={stride}, summary={summary}, bands={bands}, part={part})"
    sees = fixed(stride, summary, bands, part) if kind == "fixed" else strided(stride, part)

    def causally(row, head, i, j):
        return sees(row, head, i, j) and (j <= i or not pattern.causal)

    assert_attend_is(headwise(spec, pattern, channels=4), causally, n, seed)


@pytest.mark.parametrize("name", ["fixed_mask", "fixed_mask_block1", "strided_mask"])
def test_masks_of_the_authors_are_matched_pair_by_pair(name):
    with np.load(SHIPPED / f"sparse_transformer__cs_openai_{name}.npz", allow_pickle=False) as file:
        sizes, expected = json.loads(str(file["meta"]))["hyperparameters"], torch.from_numpy(file["out"])
    options = {"kind": sizes["mode"], "stride": sizes["local_attn_ctx"]}
    if sizes["mode"] == "fixed":
        options |= {"summary": sizes["vertsize"] * sizes["block"], "bands": sizes["num_verts"]}
    else:
        options["part"] = "far"
    spec = f"sparse_transformer({', '.join(f'{name}={value}' for name, value in options.items())})"
    layer = headwise(spec, Pattern.CAUSAL_SELF, heads=sizes["heads"], channels=2)
    q = torch.ones(1, sizes["heads"], sizes["length"], 2, dtype=torch.float64)
    assert torch.equal(layer.weights(q, q)[0] > 0, expected)
    values = torch.eye(sizes["length"], dtype=torch.float64).expand(1, sizes["heads"], -1, -1)
    assert torch.equal(layer.attend(q, q, values)[0] > 0, expected)


@pytest.mark.parametrize("kind", ["fixed", "strided"])
@pytest.mark.parametrize("options", ["stride=7", "stride=7, bands=2, summary=2", "stride=40", "stride=3, part=far"])
def test_decoding_continues_any_prefix(kind, options):
    assert_steps_continue(headwise(f"sparse_transformer(kind={kind}, {options})", Pattern.CAUSAL_SELF), n=17)


@pytest.mark.parametrize("longest, expected", [(None, 128), (1, 1), (1024, 32), (2001, 45), (16384, 128)])
def test_the_stride_is_the_root_of_the_greatest_length(longest, expected):
    build = attentions.get("sparse_transformer")
    assert build(8, 2, Pattern.CAUSAL_SELF, max_length=longest).stride == expected
    assert attentions.get("sparse_transformer(stride=9)")(8, 2, Pattern.CAUSAL_SELF, max_length=longest).stride == 9


@pytest.mark.parametrize("spec", ["stride=0", "summary=0", "bands=0"])
def test_impossible_options_are_refused(spec):
    with pytest.raises(UsageError, match="of at least 1, got"):
        headwise(f"sparse_transformer({spec})", Pattern.CAUSAL_SELF)
