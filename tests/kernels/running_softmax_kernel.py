"""The Triton kernels of running softmax against the law, on a GPU or in Triton's interpreter.

`test_running_softmax.py` runs this file in a process of its own, since Triton asks at its import whether to interpret.
"""

import pytest
import torch

from longspan.kernels import running_softmax
from longspan.kernels.running_softmax import fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

if DEVICE == "cpu":
    from tests.kernels.interpreter import mend

    mend()


def draw(length, *, spread=1.0, hidden=0, slots=3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(2, 1, length, 8, generator=generator) for _ in range(3))
    a, p = (torch.randn(2, 1, length, slots, generator=generator) for _ in range(2))
    a = spread * a
    a[0, :, :hidden] = -torch.inf
    return [x.to(DEVICE, dtype).requires_grad_() for x in (q, k, v, a, p)]


def both(inputs, impl):
    q, k, v, a, p = inputs
    outputs = running_softmax.scores(q, k, a, impl=impl), running_softmax.read(p, a, v, impl=impl)
    generator = torch.Generator().manual_seed(1)
    loss = sum((y * torch.randn(y.shape, generator=generator).to(y)).sum() for y in outputs)
    return *outputs, *torch.autograd.grad(loss, inputs)


@pytest.mark.parametrize("length, spread, hidden", [(64, 1.0, 0), (130, 30.0, 0), (100, 1.0, 70), (65, 1e4, 3)])
def test_outputs_and_gradients_are_those_of_the_law(length, spread, hidden):
    inputs = draw(length, spread=spread, hidden=hidden)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    for found, expected in zip(both(inputs, "triton"), both(exact, "reference"), strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=2e-5)  # sums of single precision


@pytest.mark.parametrize("slots", [1, 16])
def test_any_number_of_slots_agrees_with_halves(slots):
    inputs = draw(64, slots=slots)
    for found, expected in zip(both(inputs, "triton"), both(inputs, "chunked"), strict=True):
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


def test_torch_finds_nothing_wrong_with_the_operators():
    a, p = (torch.randn(3, 16, 2, device=DEVICE, requires_grad=True) for _ in range(2))
    m, x = a.detach().cummax(dim=1).values, torch.randn(3, 16, 16, device=DEVICE, requires_grad=True)
    aspects = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(fused.rows, (x, a, m), test_utils=aspects)
    torch.library.opcheck(fused.pairs, (p, a, m), test_utils=aspects)
    torch.library.opcheck(fused.keys, (p.detach(), x.detach(), None, a.detach(), m), test_utils=aspects)
