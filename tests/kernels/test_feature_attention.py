"""Attention by features: the law against the dense formula, the kernel against the law, and what the compiler says."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.feature_attention import feature_attention, shapes
from longspan.kernels.flops import formulas
from tests.kernels.agreement import gradients
from tests.kernels.feature_problems import draw
from tests.kernels.in_a_process import ROUNDS, assert_passes, needs_triton
from tests.kernels.sm90 import STRIDES, compiled, needs_compiler


def dense(q, k, v, *, feature, causal, eps, floor=0.0, key_mask=None, angles=None):
    """With the whole matrix of weights."""
    if feature == "elu":
        weights = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    elif angles is not None:
        weights = q.relu() @ k.relu().mT * (angles[0][:, None, :, None] - angles[1][:, None, None, :]).cos()
    else:
        weights = q @ k.mT
    if key_mask is not None:
        weights = weights * key_mask[:, None, None]
    weights = weights.tril() if causal else weights
    return weights @ v / (weights.sum(dim=-1, keepdim=True) + eps).clamp(min=floor)


@given(
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from(["none", "elu", "cosine"]),
    st.booleans(),
    st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_the_law_is_the_dense_formula_in_outputs_and_gradients(n, m, feature, causal, masked):
    how = {"causal": causal, "masked": masked, "dtype": torch.float64, "c": 3, "e": 4}
    inputs, options = draw(n, n if causal else m, feature=feature, **how)
    y, law = feature_attention(*inputs, **options), dense(*inputs, **options)
    torch.testing.assert_close(y, law, atol=1e-6, rtol=1e-6)  # angles are float32
    for found, expected in zip(gradients(y, inputs), gradients(law, inputs), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_half_precision_is_summed_in_single_precision_also_under_autocast():
    (q, k, v), options = draw(300, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        y = feature_attention(q, k, v, **options)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, feature_attention(q.float(), k.float(), v.float(), **options).bfloat16())


@pytest.mark.parametrize("c, feature, dtype, words", [(200, "elu", torch.float32, "at most 128 wide"), (100, "cosine",
    torch.float32, "at most 128 wide"), (16, "elu", torch.float64, "float32 or all in bfloat16")])  # fmt: skip
@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(c, feature, dtype, words):
    inputs, options = draw(3, feature=feature, c=c, dtype=dtype)
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        feature_attention(*inputs, **options, impl="triton")


def test_operations_count_sums_and_readings_forth_and_back():
    q, k, v = (2, 3, 10, 8), (2, 3, 20, 8), (2, 3, 20, 4)
    beside, how = [None] * 3, (False, 1e-6, 0.0)
    forth = formulas()[torch.ops.longspan.feature_attention]
    back = formulas()[torch.ops.longspan.feature_attention_backward]
    assert forth(q, k, v, *beside, "elu", *how) == 2 * 6 * 30 * 8 * 5
    assert forth(q, k, v, *beside, "cosine", *how) == 2 * 6 * 30 * 16 * 5
    assert back(v, None, q, k, v, *beside, (), (), "elu", *how) == 2 * 2 * 6 * 30 * 8 * 5


@needs_triton
@pytest.mark.parametrize("choice", ROUNDS)
def test_the_kernel_follows_the_law(choice):
    assert_passes("feature_attention_kernel.py", *choice)


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("feature, limit_kib", [("elu", 112), ("cosine", 160)])
@pytest.mark.parametrize("name", ["_sum_keys", "_read", "_back_to_queries", "_back_to_keys"])
def test_it_compiles_for_a_large_gpu_within_the_memory_on_its_chip(name, feature, limit_kib):
    from longspan.kernels.feature_attention import triton as kernels

    kernel = getattr(kernels, name)
    sample = torch.empty(4, 8, 1024, 64, dtype=torch.bfloat16)
    (shape,) = shapes.Shape.slices(sample, sample, feature, causal=True, eps=1e-6, floor=0.0)
    constants = shape.constants(back="back" in name)
    constants |= shape.flags | {"MASKED": True, "GIVEN": False}
    single = ("sums", "dsums", "d", "dd", "q_angles", "k_angles")
    kinds = dict.fromkeys(single, "*fp32") | {"mask": "*u8", "eps": "fp32", "floor": "fp32"}
    kinds |= dict.fromkeys(("heads", "n", "share"), "i32")
    built = compiled(kernel, constants, kinds, otherwise="*bf16", multiples=f"n|share|{STRIDES}")
    assert built.metadata.shared <= limit_kib * 1024
