"""Long Range Arena's Performer: a ReLU kernel without random features, and two features redrawn at every call."""

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.released import lra_performer
from longspan.core.errors import UsageError


def build(spec="lra_performer", dim=12, heads=3, **shell):
    torch.manual_seed(0)
    return attentions.get(spec)(dim, heads, Pattern.NONCAUSAL_SELF, **shell).double().eval()


def tensors(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, n, 4, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]


def assert_same(found, expected, leaves):
    torch.testing.assert_close(found, expected)
    w = torch.randn_like(found)
    for one, other in zip(*(torch.autograd.grad((y * w).sum(), leaves) for y in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("n", [1, 2, 63])
def test_weights_are_products_of_rectified_channels(n):
    q, k, v = tensors(n)
    products = (q.clamp(min=0) + 1e-3) @ (k.clamp(min=0) + 1e-3).mT
    expected = products / products.sum(dim=-1, keepdim=True) @ v
    assert_same(build().attend(q, k, v), expected, (q, k, v))


@pytest.mark.parametrize("features", [2, 9])
def test_features_stand_for_the_softmax_with_the_largest_projection_taken_off(features, monkeypatch):
    q, k, v = tensors(17)
    w = torch.randn(features, 4, dtype=torch.float64)
    monkeypatch.setattr(lra_performer, "draw_directions", lambda *_: w)

    def phi(x, over):
        x = x / 4**0.25
        logits = x @ w.T
        return torch.exp(logits - logits.amax(dim=over, keepdim=True) - (x * x).sum(dim=-1, keepdim=True) / 2) + 1e-6

    products = phi(q, -1) @ phi(k, (-1, -2)).mT
    expected = products / products.sum(dim=-1, keepdim=True) @ v
    assert_same(build(f"lra_performer(features={features})").attend(q, k, v), expected, (q, k, v))


def test_directions_are_orthogonal_in_blocks_and_decided_by_the_sum_of_the_queries():
    q, k, _ = (u.detach() for u in tensors(5))
    rows = lra_performer.draw_directions(q, 6)
    assert rows.shape == (6, 4)
    for block in (rows[:4], rows[4:]):
        products = block @ block.T
        torch.testing.assert_close(products, products.diag().diag(), rtol=0, atol=1e-6)  # drawn in single precision
    assert torch.equal(rows, lra_performer.draw_directions(q, 6))
    assert torch.equal(rows, lra_performer.draw_directions(q.flip(2).flip(2), 6))
    assert not torch.equal(rows, lra_performer.draw_directions(k, 6))


def test_rows_of_a_batch_change_one_another_through_the_directions_alone():
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    relu, drawn = build(), build("lra_performer(features=2)")
    torch.testing.assert_close(relu(x)[:1], relu(x[:1]))
    assert (drawn(x)[:1] - drawn(x[:1])).abs().max() > 1e-3


@pytest.mark.parametrize("spec", ["lra_performer", "lra_performer(features=2)"])
def test_masks_and_dropout_change_nothing(spec):
    layer = build(spec, dropout=0.5).train()
    x = torch.randn(2, 30, 12, dtype=torch.float64)
    assert torch.equal(layer(x), layer(x, mask=torch.zeros(2, 30, dtype=torch.bool)))


@pytest.mark.parametrize("spec", ["lra_performer", "lra_performer(features=2)"])
@pytest.mark.parametrize("n", [1, 2, 200])
@pytest.mark.parametrize("masked", [False, True])
def test_any_length_runs_forward_and_backward(spec, n, masked):
    layer = build(spec)
    x = torch.randn(2, n, 12, dtype=torch.float64, requires_grad=True)
    layer(x, mask=torch.rand(2, n) < 0.6 if masked else None).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_no_features_are_refused():
    with pytest.raises(UsageError, match="got features=0"):
        build("lra_performer(features=0)")
