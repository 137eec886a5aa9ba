"""Performer against the dense formula, and against softmax on average."""

import pytest
import torch

from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from longspan.kernels.favor import draw_projection
from tests.attentions.agreement import PATTERNS, assert_attend_is, assert_steps_continue, headwise


def dense(layer):
    def formula(q, k, v, visible):
        def phi(x):
            x = x / x.shape[-1] ** 0.25
            projected = x @ layer.projection.mT
            return projected.relu() + 1e-3 if layer.kernel == "relu" else (projected - (x * x).sum(-1, True) / 2).exp()

        weights = (phi(q) @ phi(k).mT) * visible
        return weights @ v / weights.sum(dim=-1, keepdim=True).clamp(min=1e-300)

    return formula


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kernel", ["softmax", "relu"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_is_the_dense_formula(pattern, kernel, masked):
    layer = headwise(f"performer(features=20, kernel={kernel})", pattern)
    assert_attend_is(dense(layer), layer, masked=masked)


@pytest.mark.parametrize("pattern", [Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS])
@pytest.mark.parametrize("kernel", ["softmax", "relu"])
def test_decoding_continues_any_prefix(pattern, kernel):
    assert_steps_continue(headwise(f"performer(features=20, kernel={kernel})", pattern))


def test_the_mean_over_draws_is_the_softmax_kernel():
    torch.manual_seed(0)
    layer = headwise("performer(features=8)", Pattern.NONCAUSAL_SELF, heads=1, channels=8)
    q, k = torch.randn(2, 1, 1, 1, 8).double()
    draws = []
    for _ in range(2000):
        layer.projection = draw_projection(8, 8, "chi").double()
        draws.append((layer.log_features(q) + layer.log_features(k)).exp().mean())
    draws = torch.stack(draws)
    error = draws.mean() - (q * k).sum().div(8**0.5).exp()
    assert error.abs() < 3 * draws.std() / 2000**0.5


def test_rows_of_a_block_are_orthogonal_and_the_last_block_is_cut():
    torch.manual_seed(0)
    rows = draw_projection(20, 8, "sqrt")
    assert rows.shape == (20, 8)
    for block in rows.split(8):
        torch.testing.assert_close(block @ block.mT, 8 * torch.eye(len(block)), atol=1e-5, rtol=0)


def test_the_seed_decides_the_projection():
    one, same, other = (headwise("performer", Pattern.NONCAUSAL_SELF, seed=seed).projection for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_the_future_does_not_leak_through_the_maximum():
    layer = headwise("performer(features=32)", Pattern.CAUSAL_SELF)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 80, 6).double()
    huge = k.clone()
    huge[:, :, -1] *= 6
    assert torch.equal(layer.attend(q, k, v)[:, :, :-1], layer.attend(q, huge, v)[:, :, :-1])


def test_features_that_share_nothing_still_give_a_finite_row_and_gradient():
    layer = headwise("performer(features=16)", Pattern.CAUSAL_SELF).float()
    q, k, v = (1e3 * torch.randn(3, 1, 2, 40, 6)).requires_grad_()
    y = layer.attend(q, k, v)
    y.sum().backward()
    assert y.isfinite().all()


def test_relu_features_need_a_positive_eps():
    with pytest.raises(UsageError, match="Features must be positive"):
        headwise("performer(kernel=relu, eps=0.0)", Pattern.NONCAUSAL_SELF)


def test_nothing_is_added_to_softmax_features():
    with pytest.raises(UsageError, match="adds nothing to softmax features"):
        headwise("performer(eps=1e-4)", Pattern.NONCAUSAL_SELF)
