"""FNet: the real part of a transform whose size is fixed, so that padding cannot matter."""

import math

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UsageError


def build(longest=None, dim=6):
    return attentions.get("fnet")(dim, 1, Pattern.NONCAUSAL_SELF, max_length=longest)


def by_matrices(x, size):
    """The real part of the transform from cosines and sines, C x C - S x S, zero-padded to `size` tokens."""
    x = torch.cat([x, x.new_zeros(x.shape[0], size - x.shape[1], x.shape[2])], dim=1)
    angles = [2 * math.pi * torch.outer(u, u) / len(u) for u in (torch.arange(n, dtype=x.dtype) for n in x.shape[1:])]
    (cosine_n, cosine_d), (sine_n, sine_d) = (a.cos() for a in angles), (a.sin() for a in angles)
    return cosine_n @ x @ cosine_d - sine_n @ x @ sine_d


@pytest.mark.parametrize("n, size", [(1, 1), (2, 5), (9, 9), (63, 64)])
@pytest.mark.parametrize("dim", [1, 2, 5, 6])
def test_outputs_and_gradients_follow_the_formula(n, size, dim):
    x = torch.randn(2, n, dim, dtype=torch.float64, requires_grad=True)
    found, expected = build(size, dim)(x), by_matrices(x, size)[:, :n]
    torch.testing.assert_close(found, expected)
    w = torch.randn_like(found)
    gradients = [torch.autograd.grad((y * w).sum(), x)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients)
    torch.autograd.gradgradcheck(build(size, dim), x[:, :3].detach().requires_grad_())


def test_padding_changes_nothing_when_the_size_is_fixed():
    layer = build(50)
    x = torch.randn(2, 20, 6, dtype=torch.float64)
    mask = torch.arange(50) < torch.tensor([[20], [7]])
    padded = torch.cat([x, torch.zeros(2, 30, 6, dtype=torch.float64)], dim=1).masked_fill(~mask[..., None], 1e4)
    wide, narrow = layer(padded, mask=mask), layer(x, mask=mask[:, :20])
    torch.testing.assert_close(wide[:, :20], narrow)
    torch.testing.assert_close(narrow[1, :7], layer(x[1:, :7])[0])


def test_a_row_of_padding_gives_zero():
    y = build()(torch.full((1, 5, 6), 1e4), mask=torch.zeros(1, 5, dtype=torch.bool))
    assert not y.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fill", [1e4, -1e4])
def test_extreme_inputs_stay_finite(dtype, fill):
    y = build()(torch.full((1, 1000, 6), fill, dtype=dtype))
    assert y.dtype == dtype
    assert y.isfinite().all()


def test_there_is_nothing_to_learn():
    assert not list(build().parameters())


def test_a_longer_sequence_is_refused():
    with pytest.raises(UsageError, match="at most 8 tokens, got 9"):
        build(8)(torch.randn(1, 9, 6))


def test_a_context_is_refused():
    with pytest.raises(UsageError, match="takes no context"):
        build()(torch.randn(1, 9, 6), torch.randn(1, 9, 6))
