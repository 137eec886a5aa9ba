"""The Triton kernel of the running covariance against its reference, on a GPU or in Triton's interpreter.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

from functools import partial

import pytest
import torch

from longspan.kernels.running_covariance import operator, running_covariance
from longspan.kernels.running_covariance import triton as kernels
from tests.kernels.agreement import assert_agrees
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import assert_one_graph, check, replayed


def draw(b, h, t, c, *, begun=True):
    generator = torch.Generator().manual_seed(t)
    tokens = [torch.randn(b, h, t, c, generator=generator) for _ in range(3)]
    heat = 1 + torch.rand(h, 1, 1, generator=generator)
    earlier = torch.randn(2, b, h, 5, c, generator=generator) * begun
    sums = [earlier[0].mT @ earlier[1], *earlier.square().sum(dim=3)]
    return [x.to(DEVICE).requires_grad_() for x in (*tokens, heat, *sums)]


def mixed(q, k, v, heat, *sums, impl):
    """The output and all sums, each with a gradient."""
    y, after = running_covariance(q, k, v, heat, sums, impl=impl)
    return y, *after


def follow(leaves, atol=2e-6):
    fast, reference = (partial(mixed, impl=impl) for impl in ("triton", "reference"))
    assert_agrees(fast, reference, leaves, atol=atol, rtol=1e-5, least=1.0)


@pytest.mark.parametrize("b, h, t, c", [(1, 1, 1, 16), (2, 1, 5, 3), (1, 2, 20, 16), (1, 1, 33, 20), (1, 1, 70, 8)])
def test_outputs_and_gradients_are_those_of_the_reference(b, h, t, c):
    follow(draw(b, h, t, c))


def test_a_row_that_begins_with_nothing_agrees():
    leaves = draw(1, 2, 18, 16, begun=False)
    assert_agrees(
        lambda *four: running_covariance(*four, impl="triton")[0],
        lambda *four: running_covariance(*four, impl="reference")[0],
        leaves[:4],
        atol=5e-6,  # the first norms are of single tokens; on an H200 one gradient of 576 is off by 3.4e-6
        rtol=1e-5,
        least=1.0,
    )


def test_tokens_of_0_change_nothing_and_get_no_gradient_that_is_not_a_number():
    q, k, v, heat, *_ = draw(1, 1, 9, 4)
    q, k = (torch.cat([torch.zeros_like(x[:, :, :3]), x[:, :, 3:]], dim=2).detach().requires_grad_() for x in (q, k))
    y, _ = running_covariance(q, k, v, heat, impl="triton")
    torch.testing.assert_close(y[:, :, :3], v[:, :, :3].mean(dim=3, keepdim=True).expand(-1, -1, -1, 4))
    assert all(x.isfinite().all() for x in torch.autograd.grad(y.square().sum(), [q, k, v, heat]))


def test_early_tokens_keep_their_digits_beside_later_ones_that_are_larger():
    q, k, v, heat, *_ = draw(1, 1, 12, 8, begun=False)
    with torch.no_grad():
        q[:, :, 8:] *= 1e4
        k[:, :, 8:] *= 1e4
    leaves = [x[:, :, :8].detach().double().requires_grad_() for x in (q, k, v)]
    expected = torch.autograd.grad(running_covariance(*leaves, heat.double())[0].sum(), leaves[0])[0]
    found = torch.autograd.grad(running_covariance(q, k, v, heat, impl="triton")[0][:, :, :8].sum(), q)[0]
    torch.testing.assert_close(found[:, :, :8].double(), expected, atol=1e-5, rtol=1e-4)


def test_the_layout_of_its_inputs_does_not_matter():
    leaves = draw(2, 2, 7, 4)
    apart = [x.mT.contiguous().mT for x in leaves[:3]]
    for one, other in zip(mixed(*apart, *leaves[3:], impl="triton"), mixed(*leaves, impl="triton"), strict=True):
        torch.testing.assert_close(one, other)


def test_torch_finds_nothing_wrong_with_the_operators():
    q, k, v, heat, *sums = draw(1, 2, 5, 4)
    inputs = [q, k, v, heat.flatten(), *(x[:, :, None] for x in sums)]
    check(operator.forward, *inputs)
    check(operator.backward, torch.randn_like(q), *(x.detach() for x in inputs), differentiable=False)


@pytest.mark.full  # compiling it takes longer than all the other tests
@pytest.mark.parametrize("lengths", [(5, 30), (70, 130)], ids=["one chunk", "several"])
def test_compiled_callers_have_one_graph_for_any_length(lengths):
    assert_one_graph(lambda *leaves: mixed(*leaves, impl="triton")[0], [draw(1, 2, t, 4) for t in lengths])


@on_a_gpu
@pytest.mark.parametrize("c", [16, 32, 64, 80, 128])
def test_rows_of_real_length_agree(c):
    follow(draw(2, 2, 1000, c), atol=4e-5)  # sums of 1,000 tokens; on an H200 one output of 65,536 is off by 2.5e-5


@on_a_gpu
def test_it_chooses_the_kernel_by_itself_and_a_graph_records_it(monkeypatch):
    leaves = draw(2, 2, 512, 64)

    def step():
        y, *_ = mixed(*leaves, impl="auto")
        return [y, *torch.autograd.grad(y.square().sum(), leaves)]

    for one, other in replayed(step, leaves[:3]):
        torch.testing.assert_close(one, other)
    monkeypatch.setattr(kernels, "forward", None)
    with pytest.raises(TypeError):
        mixed(*leaves, impl="auto")
