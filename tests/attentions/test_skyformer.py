"""Skyformer against its formula with a plain inverse, and what it draws."""

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.skyformer import WHOLE, Skyformer
from longspan.core.errors import UsageError

NS, NC, CC = Pattern.NONCAUSAL_SELF, Pattern.NONCAUSAL_CROSS, Pattern.CAUSAL_CROSS


def build(options="", pattern=NS) -> Skyformer:
    torch.manual_seed(0)
    layer = attentions.get(f"skyformer({options})")(8, 2, pattern).double().eval()
    assert isinstance(layer, Skyformer)
    return layer


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def kernel(x, y):
    return (-(x[:, None] - y).square().sum(dim=-1) / 2).exp()


def by_hand(layer, q, k, v):
    """One head of one row, entry by entry, with the inverse that the iteration converges to."""
    q, k = q / q.shape[1] ** 0.25, k / k.shape[1] ** 0.25
    drawn = (layer.draws.flatten().double() / WHOLE).tolist()
    half = 0 if layer.pattern is CC else len(drawn) // 2
    z = [q[int(share * len(q))] for share in drawn[:half]] + [k[int(share * len(k))] for share in drawn[half:]]
    z = torch.stack(z).unflatten(0, layer.draws.shape)

    def g(x):
        return torch.stack([kernel(x, some) for some in z]).sum(dim=0)

    w = sum(g(some) for some in z) + layer.ridge * torch.eye(z.shape[1]).double()
    return g(q) @ torch.linalg.inv(w) @ (g(k).T @ v)


@pytest.mark.parametrize("pattern", [NS, NC, CC])
@pytest.mark.parametrize("options", ["landmarks=6", "landmarks=5, accumulation=3, ridge=0.5"])
def test_it_is_the_nystrom_method_on_drawn_tokens(pattern, options):
    layer, m = build(f"{options}, iterations=30", pattern), 13 if pattern is NS else 9
    q, k, v = randn(2, 2, 13, 4), randn(2, 2, m, 4, seed=1), randn(2, 2, m, 4, seed=2)
    flat = zip(*(u.flatten(0, 1) for u in (q, k, v)), strict=True)
    expected = torch.stack([by_hand(layer, *one) for one in flat])
    torch.testing.assert_close(layer.attend(q, k, v).flatten(0, 1), expected)


def test_with_landmarks_everywhere_it_tends_to_the_gaussian_kernel():
    layer, v = build("landmarks=400, ridge=1e-6, iterations=60"), randn(1, 2, 9, 4, seed=2)
    q, k = 2 * randn(1, 2, 9, 4), 2 * randn(1, 2, 9, 4, seed=1)
    exact = torch.stack([kernel(*(u[0, h] / 2**0.5 for u in (q, k))) @ v[0, h] for h in range(2)])
    torch.testing.assert_close(layer.attend(q, k, v)[0], exact, atol=1e-3, rtol=1e-3)  # the ridge remains


def test_training_draws_anew_and_evaluation_keeps_what_is_saved():
    layer, x = build("landmarks=4"), randn(1, 30, 8)
    assert torch.equal(layer(x), layer(x))
    layer.train()
    assert not torch.allclose(layer(x), layer(x))


def test_another_precision_draws_the_same_tokens():
    layer, x = build("landmarks=16"), randn(1, 500, 8)
    y = layer(x)
    assert torch.allclose(layer.bfloat16().double()(x), y, rtol=0.1, atol=0.1 * y.abs().max().item())


@pytest.mark.parametrize("options", ["landmarks=0", "ridge=0.0", "iterations=0"])
def test_sizes_that_are_none_are_refused(options):
    with pytest.raises(UsageError, match="must be at least 1"):
        build(options)
