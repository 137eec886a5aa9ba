"""The authors' SOFT: gradients of an exact inverse, and pictures only."""

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UsageError


def build(options="ratio=2"):
    torch.manual_seed(0)
    return attentions.get(f"authors_soft({options})")(8, 2, Pattern.NONCAUSAL_SELF).double().eval()


def slope(layer, x, v):
    """The derivative along v by finite differences, and by the gradient."""
    step = 1e-6
    measured = (layer(x + step * v).sum() - layer(x - step * v).sum()) / (2 * step)
    x = x.clone().requires_grad_()
    return measured.item(), float((torch.autograd.grad(layer(x).sum(), x)[0] * v).sum())


def test_the_gradient_is_the_derivative_only_where_the_steps_have_converged():
    x, v = torch.randn(1, 16, 8).double(), torch.randn(1, 16, 8).double()
    measured, found = slope(build("ratio=2, iterations=40"), x, v)
    assert found == pytest.approx(measured, rel=1e-5)
    measured, found = slope(build("ratio=2, iterations=3"), x, v)
    assert found != pytest.approx(measured, rel=1e-2)


def test_padding_is_seen():
    layer, x = build(), torch.randn(1, 16, 8).double()
    assert torch.equal(layer(x, mask=torch.arange(16)[None] < 9), layer(x))


@pytest.mark.parametrize("options, n", [("ratio=2", 15), ("ratio=4, columns=3", 12), ("ratio=2, columns=5", 16)])
def test_what_is_no_picture_is_refused(options, n):
    with pytest.raises(UsageError, match="whole pictures"):
        build(options)(torch.randn(1, n, 8).double())


@pytest.mark.parametrize("options, words", [("ratio=0", "at least 1"), ("ratio=2, conv=2", "choose an odd number")])
def test_options_without_a_meaning_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        build(options)


def test_weights_in_bfloat16_give_bfloat16():
    layer, x = build().bfloat16(), torch.randn(2, 16, 8).bfloat16()
    y = layer(x)
    assert y.dtype is torch.bfloat16
    torch.testing.assert_close(y.float(), layer.float()(x.float()), rtol=0.05, atol=0.05)  # of rounding
