"""Running softmax: chunks agree with slots written out for any logits; the kernels follow the reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.kernels import bounded_memory
from longspan.kernels.bounded_memory.one_memory_operator import OneMemoryShape
from longspan.kernels.bounded_memory.operator import MemoryShape
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.flops import formulas
from tests.kernels import agreement
from tests.kernels.agreement import exact
from tests.kernels.memory import LargestTensor
from tests.kernels.slot_problems import draw, outcome
from tests.kernels.sm90 import STRIDES, compiled, needs_compiler


def written_out(q, k, v, a, b=None, *, causal, key_mask=None):
    """Token by token, with plain exponentials."""
    rows, n, m = [], q.shape[2], k.shape[2]
    real = 1 if key_mask is None else key_mask[:, None, :, None]
    weights = [(k @ a).exp() * real, (k @ a if b is None else v @ b).exp() * real]
    for t in range(n):
        seen = t + 1 if causal else m
        keys, values = (
            (w[:, :, :seen].mT @ x[:, :, :seen]) / w[:, :, :seen].sum(dim=2)[..., None].clamp(min=1e-300)
            for w, x in zip(weights, (k, v), strict=True)
        )
        p = (q[:, :, t : t + 1] @ keys.mT / q.shape[3] ** 0.5).softmax(dim=-1)
        rows.append(p @ values)
    return torch.cat(rows, dim=2)


@given(st.integers(1, 40), st.integers(1, 40), st.booleans(), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=25)
def test_the_reference_is_the_formula_token_by_token(n, m, causal, shared, masked):
    how = {"causal": causal, "shared": shared, "masked": masked}
    inputs, options = draw(n, n if causal else m, rows=2, dtype=torch.float64, **how)
    reference = bounded_memory.attend(*inputs, **options, impl="reference")
    torch.testing.assert_close(reference, written_out(*inputs, **options))


@pytest.mark.parametrize("spread", [1.0, 60.0])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 300])
def test_chunks_agree_with_the_slots_in_outputs_and_gradients(length, spread):
    inputs, options = draw(length, rows=2, heads=2, spread=spread, masked=length > 2, dtype=torch.float64)
    for found, expected in zip(outcome(inputs, options, "chunked"), outcome(inputs, options, "reference"), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("hidden", [1, 40, 100])
def test_hidden_tokens_are_as_if_they_were_not_there(hidden):
    inputs, options = draw(100, rows=2, heads=2, dtype=torch.float64)
    mask = torch.ones(2, 100, dtype=torch.bool)
    mask[0, :hidden] = False
    y = bounded_memory.attend(*inputs, **options, key_mask=mask)
    assert not y[0, :, :hidden].any()
    late = [x[:1, :, hidden:] for x in inputs[:3]]
    torch.testing.assert_close(y[:1, :, hidden:], bounded_memory.attend(*late, *inputs[3:], **options))


def test_logits_of_any_size_stay_exact_in_single_precision():
    inputs, options = draw(100, spread=1e4)
    with torch.no_grad():
        for x in inputs:
            x.copy_(x.round())  # so that the logits themselves are exact
    y, reference = (bounded_memory.attend(*x, **options) for x in (inputs, exact(inputs)))
    torch.testing.assert_close(y.double(), reference, atol=1e-5, rtol=1e-5)


def test_half_precision_is_summed_in_single_precision_also_under_autocast():
    inputs, options = draw(100, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        y = bounded_memory.attend(*inputs, **options)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, bounded_memory.attend(*(x.float() for x in inputs), **options).bfloat16())


def test_no_tensor_holds_the_slots_of_every_moment():
    n, r, e = 2048, 64, 64
    inputs, options = draw(n, slots=r, c=e, e=e)
    with LargestTensor() as largest:
        bounded_memory.attend(*inputs, **options).sum().backward()
    assert largest.numel <= n * r * e // 4


@pytest.mark.parametrize(
    "problem, words",
    [
        ({"c": 200}, "at most 128 wide"),
        ({"slots": 65, "c": 64}, "slots at most 4096"),
        ({"dtype": torch.float64}, "float32 or all in bfloat16"),
    ],
)
@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(problem, words):
    inputs, options = draw(3, **problem)
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        bounded_memory.attend(*inputs, **options, impl="triton")


def test_operations_count_logits_slots_and_readings_forward_and_backward():
    q, k, v, a, b = (2, 3, 10, 8), (2, 3, 20, 8), (2, 3, 20, 4), (8, 5), (4, 5)
    forward = formulas()[torch.ops.longspan.bounded_memory]
    backward = formulas()[torch.ops.longspan.bounded_memory_backward]
    assert forward(q, k, v, a, b, None, False) == 2 * 6 * 5 * (20 * (12 + 12) + 10 * 12)
    assert forward(q, k, v, a, None, None, False) == 2 * 6 * 5 * (20 * (8 + 12) + 10 * 12)
    assert backward(v, (), q, k, v, a, b, None, False) == 2 * forward(q, k, v, a, b, None, False)


def test_operations_of_one_memory_count_logits_where_they_are_made_and_scores_where_they_are_compared():
    x, control = (2, 3, 10, 8), (3, 8, 5)
    forward, backward = (
        formulas()[op] for op in (torch.ops.longspan.one_memory, torch.ops.longspan.one_memory_backward)
    )
    assert forward(x, x, x, None, None, False) == 2 * 60 * 8 * 16
    assert forward(x, x, x, control, None, True) == 2 * 60 * 5 * (8 + 24)
    assert backward(x, (), x, x, x, control, None, True) == 2 * forward(x, x, x, control, None, True)


@pytest.mark.parametrize("length", [1, 17, 100])
@pytest.mark.parametrize("name", ["mix", "attend_values"])
def test_chunks_of_one_memory_agree_with_the_slots_in_outputs_and_gradients(name, length):
    torch.manual_seed(0)
    leaves = [torch.randn(2, 2, length, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    if name == "attend_values":
        leaves.append(torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True))
    mask, compute = torch.rand(2, length) < 0.7, getattr(bounded_memory, name)
    for found, expected in zip(
        *(
            agreement.outcome(lambda *x, i=impl: compute(*x, key_mask=mask, impl=i), leaves)
            for impl in ("auto", "reference")
        ),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("dtype, slots, limit_kib", [("bf16", 16, 64), ("bf16", 64, 160), ("fp32", 16, 48)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["_pool", "_attend", "_backward_queries", "_backward_keys"])
def test_they_compile_for_a_large_gpu_within_the_memory_on_its_chip(name, causal, dtype, slots, limit_kib):
    from longspan.kernels.bounded_memory import triton as kernels

    kernel = getattr(kernels, name)
    constants = MemoryShape(32, 64, 64, slots, 2 if dtype == "bf16" else 4, causal).constants
    constants |= {"SHARED": False, "MASKED": True}
    single = ("A", "B", "sums", "states", "moments", "dsums", "dstates", "dcontrols")
    kinds = dict.fromkeys(single, "*fp32") | {"mask": "*u8", "scale": "fp32"}
    kinds |= dict.fromkeys(("heads", "n", "share", "parts", "backward_parts"), "i32")
    built = compiled(kernel, constants, kinds, otherwise=f"*{dtype}", multiples=STRIDES)
    assert built.metadata.shared <= limit_kib * 1024


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("dtype, limit_kib", [("bf16", 160), ("fp32", 160)])
@pytest.mark.parametrize("compared, slots", [(False, 64), (True, 32)], ids=["mix", "attend_values"])
@pytest.mark.parametrize("name", ["_pool", "_read", "_backward_queries", "_backward_keys"])
def test_those_of_one_memory_compile_for_a_large_gpu_too(name, compared, slots, dtype, limit_kib):
    from longspan.kernels.bounded_memory import one_memory_triton as kernels

    shape = OneMemoryShape(32, 64, 64, slots, 2 if dtype == "bf16" else 4, compared)
    constants = shape.constants | shape.reading | {"CONTROLLED": compared, "MASKED": True}
    single = ("sums", "states", "moments", "dsums", "dstates", "dcontrol")
    kinds = dict.fromkeys(single, "*fp32") | {"mask": "*u8", "scale": "fp32"} | ({"A": "*fp32"} if compared else {})
    kinds |= dict.fromkeys(("heads", "n", "share", "parts"), "i32")
    built = compiled(getattr(kernels, name), constants, kinds, otherwise=f"*{dtype}", multiples=STRIDES)
    assert built.metadata.shared <= limit_kib * 1024
