"""The Triton kernel of the pseudo-inverse against its reference, on a GPU or in Triton's interpreter.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

import pytest
import torch

from longspan.kernels.pseudo_inverse import operator, pseudo_inverse
from tests.kernels.agreement import outcome
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import check


def forward_and_backward(logits, impl):
    leaf = logits.detach().requires_grad_()
    return outcome(lambda x: pseudo_inverse(x.softmax(dim=-1), 6, impl=impl), [leaf])


def follow(logits):
    found, expected = forward_and_backward(logits, "triton"), forward_and_backward(logits.double(), "reference")
    for one, other in zip(found, expected, strict=True):  # each step amplifies earlier rounding errors
        torch.testing.assert_close(one.double(), other, atol=1e-5 * float(other.detach().abs().max()), rtol=1e-4)


def draw(r, rows=2, heads=1):
    return torch.randn(rows, heads, r, r, generator=torch.Generator().manual_seed(r)).to(DEVICE)


@pytest.mark.parametrize("r", [1, 7, 64])
def test_inverses_and_gradients_are_those_of_the_reference(r):
    follow(draw(r))


def test_it_is_deterministic():
    logits = draw(20)
    assert all(map(torch.equal, forward_and_backward(logits, "triton"), forward_and_backward(logits, "triton")))


def test_torch_finds_nothing_wrong_with_the_operator():
    a = draw(6).softmax(dim=-1).requires_grad_()
    check(operator.forward, a, a.detach().mT.clone().requires_grad_(), 3)


@on_a_gpu
def test_at_real_size_it_agrees():
    follow(draw(64, rows=4, heads=8))
