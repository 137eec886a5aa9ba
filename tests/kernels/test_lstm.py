"""The LSTM: the reference against torch's own, and what its operators promise."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from longspan.core.errors import UsageError
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.flops import formulas
from longspan.kernels.lstm import lstm, reference
from tests.kernels.agreement import outcome
from tests.kernels.sm90 import compiled, needs_compiler


@settings(deadline=None, max_examples=15)
@given(b=st.integers(0, 3), n=st.integers(1, 20), r=st.integers(1, 9), seed=st.integers(0, 99))
def test_outputs_and_gradients_are_those_of_torch(b, n, r, seed):
    torch.manual_seed(seed)
    torchs, x = nn.LSTM(3, r, batch_first=True).double(), torch.randn(b, n, 3).double().requires_grad_()
    w_ih, w_hh, *biases = leaves = list(torchs.parameters())
    found = outcome(lambda x, *_: lstm(x @ w_ih.T + sum(biases), w_hh), [x, *leaves])
    for one, other in zip(found, outcome(lambda x, *_: torchs(x)[0], [x, *leaves]), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("n", [1, 6])
def test_the_gradient_written_out_is_that_of_autograd(n):
    torch.manual_seed(n)
    leaves = [x.double().requires_grad_() for x in (torch.randn(2, n, 12), torch.randn(12, 3))]
    by_autograd = outcome(lambda z, w: reference.forward(z, w)[0], leaves)
    for one, other in zip(outcome(lstm, leaves), by_autograd, strict=True):
        torch.testing.assert_close(one, other)


def test_no_tokens_have_no_states_and_gradients_of_0():
    z, recurrent = torch.randn(2, 0, 12, requires_grad=True), torch.randn(12, 3, requires_grad=True)
    h, dz, dw = outcome(lstm, [z, recurrent])
    assert (h.shape, dz.shape) == ((2, 0, 3), z.shape)
    assert torch.equal(dw, torch.zeros(12, 3))


def test_half_precision_is_that_of_the_arguments_alone():
    torch.manual_seed(0)
    z, recurrent = torch.randn(2, 50, 32).bfloat16(), torch.randn(32, 8).bfloat16()
    expected = lstm(z.double(), recurrent.double())
    with torch.autocast("cpu", torch.bfloat16):  # which would round every state
        single = lstm(z.float(), recurrent.float())
    torch.testing.assert_close(single.double(), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(lstm(z, recurrent), single.bfloat16())


def test_operations_count_one_product_a_token_each_way():
    z, recurrent = (2, 10, 20), (20, 5)
    assert formulas()[torch.ops.longspan.lstm](z, recurrent, False) == 2 * 20 * 100
    assert formulas()[torch.ops.longspan.lstm_backward]((2, 10, 5), (2, 10, 25), recurrent, False) == 2 * 20 * 100


@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
@pytest.mark.parametrize(
    "n, r, dtype, words",
    [(3, 2, torch.float64, "float32"), (3, 65, torch.float32, "64 channels"), (0, 2, torch.float32, "no tokens")],
)
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(n, r, dtype, words):
    z, recurrent = torch.zeros(1, n, 4 * r, dtype=dtype), torch.zeros(4 * r, r, dtype=dtype)
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        lstm(z, recurrent, impl="triton")
    assert lstm(z, recurrent).shape == (1, n, r)


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("name", ["forward", "backward"])
@pytest.mark.parametrize("r, R, warps", [(5, 16, 1), (32, 32, 1), (64, 64, 4)])
def test_it_compiles_for_a_large_gpu_without_tf32(name, r, R, warps):
    from longspan.kernels.lstm import triton as kernels

    constants = {"r": r, "R": R, "num_warps": warps}
    built = compiled(getattr(kernels, name), constants, {"n": "i32"}, otherwise="*fp32")
    assert built.metadata.shared <= 64 * 1024
    assert "tf32" not in built.asm["ptx"]
