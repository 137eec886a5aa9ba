"""The Triton kernel of the LSTM against its reference, on a GPU or in Triton's interpreter; and compiled callers.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

from functools import partial

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.kernels.lstm import lstm, operator
from longspan.kernels.lstm import triton as kernels
from tests.kernels.agreement import assert_agrees
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import assert_one_graph, check, replayed


def draw(b, n, r, scale=1.0):
    generator = torch.Generator().manual_seed(n)
    z = scale * torch.randn(b, n, 4 * r, generator=generator)
    recurrent = torch.randn(4 * r, r, generator=generator) / r**0.5
    return [x.to(DEVICE).requires_grad_() for x in (z, recurrent)]


def follow(leaves, atol=2e-6):
    """Only the order of summation and the exponentials differ; the gradient of W is a sum over tokens and rows."""
    fast, reference = (partial(lstm, impl=impl) for impl in ("triton", "reference"))
    assert_agrees(fast, reference, leaves, atol=atol, rtol=1e-5, least=1.0)


@pytest.mark.parametrize("b, n, r", [(1, 1, 8), (3, 1, 5), (1, 33, 5), (3, 7, 8), (3, 19, 32), (2, 3, 64)])
def test_outputs_and_gradients_are_those_of_the_reference(b, n, r):
    follow(draw(b, n, r))


def test_gates_that_are_shut_or_open_agree():
    follow(draw(2, 9, 8, scale=60.0))


def test_tiny_states_keep_their_digits():
    z, recurrent = draw(2, 9, 8, scale=1e-3)
    found, expected = lstm(z, recurrent, impl="triton"), lstm(z.double(), recurrent.double(), impl="reference")
    torch.testing.assert_close(found.double(), expected, atol=1e-9, rtol=2e-6)


def test_the_layout_of_its_inputs_does_not_matter():
    z, recurrent = draw(3, 6, 5)
    apart = [z.mT.contiguous().mT, recurrent.mT.contiguous().mT]
    torch.testing.assert_close(lstm(*apart, impl="triton"), lstm(z, recurrent, impl="triton"), rtol=0, atol=0)


@pytest.mark.parametrize("by_triton", [False, True])
def test_torch_finds_nothing_wrong_with_the_operators(by_triton):
    z, recurrent = draw(2, 3, 5)
    check(operator.forward, z, recurrent, by_triton)
    h, kept = (x.detach() for x in operator.forward(z, recurrent, by_triton))
    check(operator.backward, torch.randn_like(h), kept, recurrent.detach(), by_triton, differentiable=False)


def test_compiled_callers_have_one_graph_for_any_length():
    assert_one_graph(lstm, [draw(2, n, 5) for n in (4, 9, 30)])


@pytest.mark.full
@pytest.mark.parametrize("masked", [False, True])
def test_compiled_sac_is_one_graph_for_any_length(masked):
    torch.manual_seed(0)
    layer = attentions.get("sac(edges=3, width=8)")(16, 2, Pattern.CAUSAL_SELF).to(DEVICE)
    inputs = [torch.randn(2, n, 16, device=DEVICE, requires_grad=True) for n in (12, 21)]
    masks = [torch.rand(x.shape[:2], device=DEVICE) < 0.7 if masked else None for x in inputs]
    assert_one_graph(lambda x, mask: layer(x, mask=mask), list(zip(inputs, masks, strict=True)))


@on_a_gpu
@pytest.mark.parametrize("r", [32, 64])
def test_rows_of_real_length_agree(r):
    follow(draw(4, 4096, r), atol=2e-5)  # errors propagate from step to step


@on_a_gpu
def test_it_chooses_the_kernel_by_itself_and_a_graph_records_it(monkeypatch):
    leaves = draw(4, 512, 32)

    def step():
        h = lstm(*leaves)
        return [h, *torch.autograd.grad(h.square().sum(), leaves)]

    for one, other in replayed(step, leaves):
        torch.testing.assert_close(one, other)
    monkeypatch.setattr(kernels, "forward", None)
    with pytest.raises(TypeError):
        lstm(*leaves)
