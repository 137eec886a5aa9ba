"""No attention: nothing goes out, nothing comes back, nothing is learned."""

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from tests.attentions.agreement import PATTERNS


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_residual_connection_around_it_passes_everything_on(pattern):
    layer = attentions.get("none")(8, 2, pattern)
    x = torch.randn(2, 5, 8, requires_grad=True)
    y = x + layer(x, torch.randn(2, 3, 8) if pattern.cross else None)
    assert torch.equal(y, x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, torch.ones_like(x))
    assert not list(layer.parameters())


def test_even_what_is_not_a_number_gives_zero():
    x = torch.full((1, 3, 8), torch.nan)
    assert (attentions.get("none")(8, 2, Pattern.NONCAUSAL_SELF)(x) == 0).all()


def test_its_state_does_not_grow():
    layer = attentions.get("none")(8, 2, Pattern.CAUSAL_SELF)
    y, state = layer.prefill(torch.randn(2, 5, 8), mask=torch.arange(5) < torch.tensor([[5], [2]]))
    assert state.tokens.tolist() == [5, 2]
    before = state.nbytes
    y, state = layer.step(torch.randn(2, 8), state)
    assert (y == 0).all()
    assert state.nbytes == before
    assert state.tokens.tolist() == [6, 3]


def test_it_takes_what_its_pattern_takes():
    with pytest.raises(UsageError, match="needs a context"):
        attentions.get("none")(8, 2, Pattern.NONCAUSAL_CROSS)(torch.randn(1, 3, 8))
