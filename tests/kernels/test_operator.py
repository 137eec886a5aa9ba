"""One helper gives every operator its gradient: of the first output with respect to the first inputs only."""

import torch
from torch import Tensor

from longspan.kernels.operator import differentiate, operator


@operator("test_scaled", fake=lambda x, y, factor: (torch.empty_like(x), torch.empty_like(x)), flops=lambda x, *_: 7)
def scaled(x: Tensor, y: Tensor | None, factor: float) -> tuple[Tensor, Tensor]:
    return factor * x * (1 if y is None else y), x.exp()


@operator("test_scaled_backward", fake=lambda dz, e, x, y, factor: (torch.empty_like(dz), torch.empty_like(dz)))
def scaled_backward(dz: Tensor, e: Tensor, x: Tensor, y: Tensor | None, factor: float) -> tuple[Tensor, Tensor]:
    assert torch.equal(e, x.exp())
    return factor * dz * (1 if y is None else y), factor * dz * x


differentiate(scaled, scaled_backward, saved=(1,))


def test_gradients_reach_the_tensors_that_were_given():
    x, y = torch.randn(2, 5, dtype=torch.float64, requires_grad=True).unbind()
    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: scaled(x, y, 3.0)[0], (x, y))
    assert torch.autograd.gradcheck(lambda x: scaled(x, None, 3.0)[0], (x,))


def test_an_output_that_only_serves_the_backward_pass_has_no_gradient():
    x = torch.randn(5, requires_grad=True)
    scaled(x, None, 2.0)[1].sum().backward()
    assert x.grad is None


def test_operators_pass_torchs_own_checks():
    x = torch.randn(5, requires_grad=True)
    torch.library.opcheck(torch.ops.longspan.test_scaled, (x, None, 2.0))
    torch.library.opcheck(torch.ops.longspan.test_scaled, (x, torch.randn(5, requires_grad=True), 2.0))
