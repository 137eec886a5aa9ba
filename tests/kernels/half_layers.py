"""Whole layers under autocast on a GPU: compared with double precision, compiled, and captured in a CUDA graph."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from tests.kernels.agreement import exact
from tests.kernels.device import DEVICE
from tests.kernels.graphs import replayed


def train(layer: nn.Module, x: Tensor, mask: Tensor | None = None, *, half: bool = True) -> list[Tensor]:
    """The output, and the gradients of x and of all parameters, 0 for unused ones."""
    with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
        y = layer(x) if mask is None else layer(x, mask=mask)
    leaves = [x, *layer.parameters()]
    return [y, *torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True, materialize_grads=True)]


def assert_itself(layer: nn.Module, x: Tensor, mask: Tensor | None = None) -> None:
    """Half precision matches double precision up to rounding."""
    reference = train(layer.double(), *exact([x]), mask, half=False)
    layer.float()
    for found, expected in zip(train(layer, x, mask), reference, strict=True):
        # biases the softmax is invariant to have gradients of pure rounding error
        assert (found - expected).norm() < 0.03 * expected.norm() + 0.02 * reference[1].norm()


def assert_compiled_for_any_length(layer: nn.Module, inputs: Iterable[Tensor], *, most: float = 1.0) -> None:
    """A single compiled graph matches the layer, in at least the fraction `most` of all entries."""
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for x in inputs:
        with torch.autocast(DEVICE, torch.bfloat16):
            found, expected = compiled(x), layer(x)
        assert ((found - expected).abs() <= 0.03 + 0.03 * expected.abs()).float().mean() >= most


def assert_recorded(layer: nn.Module, x: Tensor) -> None:
    """A replayed step gives the same results as the step."""
    for one, other in replayed(lambda: train(layer, x)):
        torch.testing.assert_close(one, other, atol=0.02, rtol=0.02)
