"""Under autocast outputs and gradients match double precision up to rounding: nothing is summed in half precision."""

import pytest
import torch

from longspan import attentions
from tests.attentions.cases import CASES

# rounding decides which queries of probsparse attend, and which hashes of yoso agree
NAMES = [name for name in CASES if name not in ("probsparse", "yoso")]
SELF = [(name, p) for name in NAMES for p in attentions.get(name).meta.patterns if not p.cross]


def train(layer, x, *, half):
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        y = layer(x)
    leaves = [x, *layer.parameters()]
    return [y, *torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True, materialize_grads=True)]


@pytest.mark.parametrize("name, pattern", SELF, ids=[f"{name}-{pattern.code}" for name, pattern in SELF])
def test_outputs_and_gradients_are_those_of_double_precision(name, pattern):
    torch.manual_seed(0)
    layer = attentions.get(name)(32, 2, pattern, max_length=512).eval()
    x = torch.randn(4, 512, 32)
    found = train(layer, x.clone().requires_grad_(), half=True)
    expected = train(layer.double(), x.double().requires_grad_(), half=False)
    for one, other in zip(found, expected, strict=True):
        # where the softmax is invariant, the gradient is only rounding error
        assert (one - other).norm() <= 0.05 * other.norm() + 0.02 * expected[1].norm()
