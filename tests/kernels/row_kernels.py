"""Triton kernels that go along rows against their references, on a GPU or in Triton's interpreter: softmax pooling,
running means, Sinkhorn normalisation and layer norms.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

from functools import partial

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.kernels.layer_norm import layer_norm
from longspan.kernels.layer_norm import operator as norming
from longspan.kernels.pooling import operator as pooling
from longspan.kernels.pooling import running_mean, softmax_pooling
from longspan.kernels.sinkhorn_normalize import operator as normalising
from longspan.kernels.sinkhorn_normalize import sinkhorn_normalize
from tests.kernels import memory
from tests.kernels.agreement import assert_agrees
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import check
from tests.kernels.half_layers import assert_compiled_for_any_length, assert_recorded

# In float32 only the order of summation differs. In bfloat16 weights and results are each rounded by a relative 2^-9.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
TYPES = [torch.float32, torch.bfloat16]
SELF = [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF]
CASES = [("longshort", SELF), ("sinkhorn", SELF)]


def draw(*shapes, dtype=torch.float32, token_by_token=False, seed=0):
    """Tensors [b h n c], in memory head by head or token by token."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(*shape, generator=generator).to(DEVICE, dtype) for shape in shapes]
    if token_by_token:
        tensors = memory.token_by_token(tensors)
    return [x.requires_grad_() for x in tensors]


def hide(rows, n):
    """Hide half of the tokens, the beginning of the first row, and all of the last row."""
    mask = torch.rand(rows, n, generator=torch.Generator().manual_seed(n)) < 0.5
    mask[0, : n // 4], mask[-1] = False, False
    return mask.to(DEVICE)


def follow(compute, inputs, tolerance=None):
    fast, reference = (partial(compute, impl=impl) for impl in ("triton", "reference"))
    tolerance = tolerance or TOLERANCE[inputs[-1].dtype]
    assert_agrees(fast, reference, inputs, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n, masked", [(530, False), (530, True), (16, False)])
def test_softmax_pooling_is_that_of_the_reference(n, masked, dtype):
    n = n if dtype == torch.bfloat16 else n // 4 + 12  # float32 has shorter tiles; several parts either way
    inputs = draw((2, 1, n, 5), (2, 1, n, 20), dtype=dtype, token_by_token=True)
    follow(lambda a, x, impl: softmax_pooling(a, x, mask=hide(2, n) if masked else None, impl=impl), inputs)


def test_softmax_pooling_takes_logits_of_any_size():
    a, x = draw((1, 1, 40, 3), (1, 1, 40, 4))
    a = (1e4 * a).detach().requires_grad_()
    s = softmax_pooling(a, x, impl="triton")
    torch.testing.assert_close(s, softmax_pooling(a, x, impl="reference"))
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(s.sum(), (a, x)))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n, c, masked", [(1, 1, False), (300, 20, True), (300, 70, False)])
def test_running_means_are_those_of_the_reference(n, c, masked, dtype):
    mask = hide(2, n) if masked else None
    inputs = draw((2, 1, n, c), dtype=dtype, token_by_token=True)
    follow(lambda x, impl: running_mean(x, mask=mask, impl=impl), inputs)


@pytest.mark.parametrize("u, v, rounds", [(1, 1, 1), (5, 5, 3), (70, 40, 2)])
@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_matrix_is_normalised_as_by_the_reference(u, v, rounds, rows):
    allowed = torch.rand(max(rows, 1), 1, u, v, generator=torch.Generator().manual_seed(u)) < (0.6 if rows else 2)
    if rows and u > 1:
        allowed[0, :, 0], allowed[-1, :, :, 1] = False, False  # an empty row and an empty column
    allowed = allowed.to(DEVICE)
    follow(lambda x, impl: sinkhorn_normalize(2 * x, allowed, rounds, impl=impl), draw((2, 1, u, v)))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows, d, programs", [(1, 3, 1), (70, 20, 3), (30, 300, 7), (3, 2_100, 2)])
def test_layer_norms_are_those_of_the_reference(rows, d, programs, dtype, monkeypatch):
    monkeypatch.setattr(norming, "PROGRAMS", programs)
    weight, bias, x = draw((d,), (d,), (2, rows, d))
    x = (3 * x + 2).to(dtype).detach().requires_grad_()  # parameters stay in float32, as in training
    follow(lambda x, w, b, impl: layer_norm(x, w, b, 1e-5, impl=impl), [x, weight, bias], TOLERANCE[dtype])


def test_torch_finds_nothing_wrong_with_the_operators():
    a, x, matrix = draw((1, 2, 9, 3), (1, 2, 9, 4), (1, 1, 3, 3))
    check(pooling.softmax_pooling, a, x, None)
    check(pooling.running_mean, x, hide(1, 9))
    check(norming.forward, x, *draw((4,), (4,)), 1e-5)
    check(normalising.forward, matrix, matrix.detach()[:, :1] < 9, 2)


def test_no_two_runs_differ_in_a_bit():
    a, x, w, b = draw((1, 1, 300, 3), (1, 1, 300, 4), (4,), (4,))

    def run():
        y = softmax_pooling(a, x, impl="triton").sum(dim=2, keepdim=True) * running_mean(x, impl="triton")
        y = layer_norm(y, w, b, 1e-5, impl="triton")
        return y, *torch.autograd.grad(y.square().sum(), (a, x, w, b))

    assert all(map(torch.equal, run(), run()))


@on_a_gpu
def test_real_sizes_agree():
    inputs = draw((4, 8, 4096, 32), (4, 8, 4096, 64), dtype=torch.bfloat16, token_by_token=True)
    follow(lambda a, x, impl: softmax_pooling(a, x, impl=impl), inputs)
    follow(lambda x, impl: running_mean(x, impl=impl), inputs[1:])
    (x,) = draw((4, 4096, 512), dtype=torch.bfloat16)
    inputs = [x, *draw((512,), (512,))]
    follow(lambda x, w, b, impl: layer_norm(x, w, b, 1e-5, impl=impl), inputs, TOLERANCE[torch.bfloat16])
    allowed = torch.ones(1, 1, 256, 256, dtype=torch.bool, device=DEVICE)
    follow(lambda x, impl: sinkhorn_normalize(x, allowed, 5, impl=impl), draw((4, 8, 256, 256)))


def core(spec, pattern, n=1024):
    torch.manual_seed(0)
    layer = attentions.get(spec)(128, 2, pattern, max_length=n).to(DEVICE).eval()
    return layer, torch.randn(2, n, 128, device=DEVICE, requires_grad=True)


@on_a_gpu
@pytest.mark.parametrize("spec, pattern", [(spec, pattern) for spec, patterns in CASES for pattern in patterns])
def test_a_compiled_mechanism_takes_them_into_one_graph_for_any_length(spec, pattern):
    layer, _ = core(spec, pattern, 2048)
    assert_compiled_for_any_length(layer, (core(spec, pattern, n)[1] for n in (1024, 1536)), most=0.99)


@on_a_gpu
@pytest.mark.parametrize("spec, pattern", [(spec, pattern) for spec, patterns in CASES for pattern in patterns])
def test_a_graph_records_them_forward_and_backward(spec, pattern):
    assert_recorded(*core(spec, pattern))


@on_a_gpu
@pytest.mark.parametrize("pattern", SELF)
def test_sinkhorn_in_half_precision_is_itself(pattern):
    layer, x = core("sinkhorn", pattern)
    with torch.autocast(DEVICE, torch.bfloat16):
        found = layer(x)
    expected = layer.double()(x.double())
    assert (found - expected).norm() < 0.03 * expected.norm()
