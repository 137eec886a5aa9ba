"""LARA as its authors released it: lara but for the optimal weights, and for padding, which counts in the landmarks."""

import pytest
import torch

from longspan import attentions
from longspan.attentions import HeadwiseAttention, Pattern
from longspan.core.errors import UsageError


def build(spec) -> HeadwiseAttention:
    torch.manual_seed(0)
    layer = attentions.get(spec)(8, 2, Pattern.NONCAUSAL_SELF).double().eval()
    assert isinstance(layer, HeadwiseAttention)
    for parameter in layer.parameters():  # so that no layer norm is the identity and no bias zero
        torch.nn.init.normal_(parameter, std=0.7)
    return layer


@pytest.mark.parametrize("n", [1, 4, 5, 13])
@pytest.mark.parametrize("weighting", ["balance", "biased"])
@pytest.mark.parametrize("proposal", ["projected", "pooled", "means"])
def test_without_padding_and_optimal_weights_it_is_lara(n, proposal, weighting):
    options = f"(landmarks=5, proposal={proposal}, weighting={weighting})"
    q, k, v = torch.randn(3, 2, 2, n, 4, dtype=torch.float64)
    twin, lara = build(f"authors_lara{options}"), build(f"lara{options}")
    torch.testing.assert_close(twin.attend(q, k, v), lara.attend(q, k, v))


def test_optimal_weights_compare_queries_with_one_another():
    layer = build("authors_lara(landmarks=5)")
    q, k, v = torch.randn(3, 1, 2, 20, 4, dtype=torch.float64)
    weights = build("lara(landmarks=5)").attend(q, k, v)
    assert not torch.allclose(layer.attend(q, k, v), weights)


def test_the_amount_of_padding_matters():
    layer, x = build("authors_lara(landmarks=6)"), torch.randn(1, 30, 8, dtype=torch.float64)
    mask = torch.arange(30)[None] < 20
    assert not torch.allclose(layer(x, mask=mask)[:, :20], layer(x[:, :20]))


@pytest.mark.parametrize("antithetic", [False, True])
def test_noise_is_for_training(antithetic):
    layer, x = build(f"authors_lara(antithetic={antithetic})"), torch.randn(2, 20, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x), layer(x))
    assert not torch.allclose(layer.train()(x), layer(x))


@pytest.mark.parametrize("n", [1, 2, 63, 130])
def test_any_length_runs_forward_and_backward_and_a_row_of_padding_gives_zero(n):
    layer, x = build("authors_lara"), torch.randn(2, n, 8, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, n) < 0.6
    mask[1] = False
    y = layer(x, mask=mask)
    y.sum().backward()
    torch.testing.assert_close(y[1], layer.out.bias.expand_as(y[1]))
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_no_landmark_at_all_is_refused():
    with pytest.raises(UsageError, match="landmarks=0"):
        build("authors_lara(landmarks=0)")


def test_several_samples_are_drawn_of_each_proposal_while_training():
    layer = build("authors_lara(landmarks=3, samples=2)").train()
    drawn = []
    noise = layer.noise
    layer.noise = lambda mu: drawn.append(mu.shape[2]) or noise(mu)
    x = torch.randn(1, 2, 9, 4)
    layer.attend(x, x, x)
    layer.eval().attend(x, x, x)
    assert drawn == [6]
