"""Attention by features: the law against the dense formula, the kernel against the law, and what the compiler says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.kernels.choice import HAS_TRITON
from longspan.kernels.feature_attention import feature_attention, shapes
from longspan.kernels.formulas import FORMULAS
from tests.kernels.feature_problems import draw, gradients

KERNEL_TESTS = Path(__file__).with_name("feature_attention_kernel.py")
ROOT = Path(__file__).parents[2]


def dense(q, k, v, *, feature, causal, eps, floor=0.0, key_mask=None, angles=None, levels=None):
    """With the whole matrix of weights."""
    if feature == "elu":
        weights = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    elif angles is not None:
        weights = q.relu() @ k.relu().mT * (angles[0][:, None, :, None] - angles[1][:, None, None, :]).cos()
    else:
        weights = q @ k.mT
    if levels is not None:
        weights = weights * (levels[0][:, :, None, :] - levels[1][..., None]).tril().exp()
    if key_mask is not None:
        weights = weights * key_mask[:, None, None]
    weights = weights.tril() if causal else weights
    return weights @ v / (weights.sum(dim=-1, keepdim=True) + eps).clamp(min=floor)


@given(
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from(["none", "elu", "cosine"]),
    st.sampled_from(["", "causal", "causal levels"]),
    st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_the_law_is_the_dense_formula_in_outputs_and_gradients(n, m, feature, form, masked):
    causal, fading = "causal" in form, "levels" in form
    how = {"causal": causal, "masked": masked, "levels": fading, "dtype": torch.float64, "c": 3, "e": 4}
    inputs, options = draw(n, n if causal else m, feature=feature, **how)
    y, law = feature_attention(*inputs, **options), dense(*inputs, **options)
    torch.testing.assert_close(y, law, atol=1e-6, rtol=1e-6)  # levels and angles are float32
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
    beside, how = [None] * 5, (False, 1e-6, 0.0)
    forth = FORMULAS[torch.ops.longspan.feature_attention]
    back = FORMULAS[torch.ops.longspan.feature_attention_backward]
    assert forth(q, k, v, *beside, "elu", *how) == 2 * 6 * 30 * 8 * 5
    assert forth(q, k, v, *beside, "cosine", *how) == 2 * 6 * 30 * 16 * 5
    assert back(v, None, q, k, v, *beside, (), (), "elu", *how) == 2 * 2 * 6 * 30 * 8 * 5


# What executes the shapes in signatures cannot be compiled, so the second round does without.
@pytest.mark.skipif(not HAS_TRITON, reason="needs triton")
@pytest.mark.parametrize(
    "choice", [["-k", "not compiled"], pytest.param(["-k", "compiled", "--noconftest"], marks=pytest.mark.full)]
)
def test_the_kernel_follows_the_law(choice):
    """On a GPU where there is one, else in Triton's interpreter; each of its tests has a name of its own."""
    interpret = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", str(KERNEL_TESTS), *choice, "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | interpret, check=False)
    assert done.returncode == 0, done.stdout[-5_000:]


@pytest.mark.skipif(not HAS_TRITON or bool(os.environ.get("TRITON_INTERPRET")), reason="needs triton's compiler")
@pytest.mark.full
@pytest.mark.parametrize("feature, limit_kib", [("elu", 112), ("cosine", 160)])
@pytest.mark.parametrize("levels", [False, True])
@pytest.mark.parametrize("name", ["_sum_keys", "_read", "_back_to_queries", "_back_to_keys"])
def test_it_compiles_for_a_large_gpu_within_the_memory_on_its_chip(name, levels, feature, limit_kib):
    """The compiler needs no GPU, and it forgives less than the interpreter."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from longspan.kernels.feature_attention import triton as kernels

    kernel = getattr(kernels, name)
    sample = torch.empty(4, 8, 1024, 64, dtype=torch.bfloat16)
    (shape,) = shapes.Shape.slices(sample, sample, feature, causal=True, eps=1e-6, floor=0.0)
    constants = shape.constants(shapes.BACK if "back" in name else shapes.FORTH)
    options = {option: constants.pop(option) for option in ("num_warps", "num_stages")}
    constants |= shape.flags | {"LEVELS": levels, "MASKED": True, "GIVEN": False}
    constants = {word: value for word, value in constants.items() if word in kernel.arg_names}
    single = ("sums", "dsums", "d", "dd", "q_angles", "k_angles", "a", "m")
    kinds = dict.fromkeys(single, "*fp32") | {"mask": "*u8", "eps": "fp32", "floor": "fp32"}
    kinds |= dict.fromkeys(("heads", "n", "share"), "i32") | dict.fromkeys(constants, "constexpr")
    kinds |= {word: "i32" for word in kernel.arg_names if re.fullmatch(r"\w+_[bht]", word)}
    signature = {word: kinds.get(word, "*bf16") for word in kernel.arg_names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (word, kind) in enumerate(signature.items())
        if kind.startswith("*") or (kind == "i32" and word != "heads")
    }
    source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert built.metadata.shared <= limit_kib * 1024
