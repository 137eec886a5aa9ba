"""Random features: the reference against the formula, the kernels against the reference, what the compiler says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.favor import favor, log_features
from longspan.kernels.favor import shape as shapes
from longspan.kernels.favor.reference import mask_logs, scale_by_feature, scale_by_token
from longspan.kernels.flops import formulas
from tests.kernels.sm90 import STRIDES, compiled, needs_compiler


def exponentials(x, projection):
    x = x / x.shape[-1] ** 0.25
    return (x @ projection.mT - (x * x).sum(-1, keepdim=True) / 2).exp()


@given(*(st.integers(1, 40) for _ in "nm"), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=20)
def test_the_reference_is_the_dense_formula_in_outputs_and_gradients(n, m, causal, masked):
    torch.manual_seed(n)
    m = n if causal else m
    inputs = [torch.randn(2, 2, t, 5).double().requires_grad_() for t in (n, m, m)]
    q, k, v = inputs
    projection, mask = torch.randn(7, 5).double(), torch.rand(2, m) < 0.7 if masked else None
    weights = exponentials(q, projection) @ exponentials(k, projection).mT
    weights = weights if mask is None else weights * mask[:, None, None]
    weights = weights.tril() if causal else weights
    dense = weights @ v / weights.sum(dim=-1, keepdim=True).clamp(min=1e-300)
    y = favor(q, k, v, projection, causal=causal, key_mask=mask)
    torch.testing.assert_close(y, dense)
    cotangent = torch.randn_like(y)
    gradients = (torch.autograd.grad(x, inputs, cotangent) for x in (y, dense))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


def test_features_and_their_scale_are_the_exponentials():
    torch.manual_seed(0)
    x, projection = torch.randn(2, 3, 7, 6).double(), torch.randn(9, 6).double()
    expected = exponentials(x, projection)
    phi, largest = scale_by_token(log_features(x, projection))
    torch.testing.assert_close(phi * largest.exp()[..., None], expected)
    phi, largest = scale_by_feature(log_features(x, projection))
    torch.testing.assert_close(phi * largest.exp()[:, :, None], expected)


def test_hidden_tokens_have_no_features_and_no_part_in_the_maximum():
    torch.manual_seed(0)
    logs, mask = torch.randn(1, 1, 5, 9).double(), torch.tensor([[True, False, True, False, False]])
    phi, largest = scale_by_feature(mask_logs(logs, mask))
    assert not phi[:, :, ~mask[0]].any()
    torch.testing.assert_close(largest, scale_by_feature(logs[:, :, mask[0]])[1])


def test_half_precision_is_summed_in_single_precision_also_under_autocast():
    torch.manual_seed(0)
    inputs, projection = [torch.randn(1, 2, 100, 8, dtype=torch.bfloat16) for _ in "qkv"], torch.randn(20, 8)
    with torch.autocast("cpu", torch.bfloat16):
        y = favor(*inputs, projection)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, favor(*(x.float() for x in inputs), projection).bfloat16())


def test_operations_count_features_sums_and_readings_once():
    q, k, v, W = (2, 3, 10, 8), (2, 3, 20, 8), (2, 3, 20, 4), (20, 8)
    forward = formulas()[torch.ops.longspan.favor]
    backward = formulas()[torch.ops.longspan.favor_backward]
    assert forward(q, k, v, W, None, True) == 2 * 6 * 30 * 20 * (8 + 5)
    assert backward(v, v, *[()] * 6, q, k, v, W, None) == 2 * 6 * 30 * 20 * (8 + 2 * 5)


@pytest.mark.parametrize("c, dtype, words", [(200, torch.float32, "at most 128"), (16, torch.float64, "float32 or")])
@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(c, dtype, words):
    x, projection = torch.zeros(1, 1, 3, c, dtype=dtype), torch.zeros(4, c)
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        favor(x, x, x, projection, impl="triton")


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["_sum_part", "_read", "_backward_queries", "_backward_keys"])
def test_it_compiles_for_a_large_gpu_within_its_shared_memory(name, causal, width):
    import triton

    from longspan.kernels.favor import triton as kernels

    kernel = getattr(kernels, name)
    shape = shapes.Shape(pairs=32, r=266, c=width, e=width, size=2, causal=causal)
    constants = shape.constants(sums=name == "_sum_part")
    constants |= {"MASKED": True, "KEYS": True, "BLOCKS": triton.next_power_of_2(shape.blocks)}
    single = ["edges", "state_edges", "d", "query_max", "running_max", "key_max", "block_max", "shift", "neg_delta"]
    kinds = dict.fromkeys(single, "*fp32") | {"mask": "*u8", "half": "fp32", "floor": "fp32"}
    kinds |= dict.fromkeys(("heads", "n", "r", "R", "share"), "i32")
    kinds |= {"sums": "*fp32"} if name == "_sum_part" else {}
    built = compiled(kernel, constants, kinds, otherwise="*bf16", multiples=f"n|R|share|{STRIDES}")
    assert built.metadata.shared <= shapes.SHARED_BYTES
