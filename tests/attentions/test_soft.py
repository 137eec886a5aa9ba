"""SOFT against its formula with an exact inverse, and its landmarks against a strided convolution."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.soft import SOFT
from longspan.core.errors import UsageError
from longspan.kernels.gaussian import gaussian_kernel, newton_inverse


def build(options="", dim=8, heads=2) -> SOFT:
    torch.manual_seed(0)
    layer = attentions.get(f"soft({options})")(dim, heads, Pattern.NONCAUSAL_SELF).double().eval()
    assert isinstance(layer, SOFT)
    return layer


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_hand(layer, u, v):
    """One head of one row with at most landmarks x ratio tokens, entry by entry, with the exact inverse."""
    u = u / u.shape[1] ** 0.25
    whole = F.pad(u, (0, 0, 0, -len(u) % layer.ratio))
    w = F.gelu(layer.norm(layer.summarise(whole.T[None])[0].T))
    kernel, a = ((-(x[:, None] - w).square().sum(dim=-1) / 2).exp() for x in (u, w))
    return kernel @ torch.linalg.inv(a + 0.01 * torch.eye(len(w)).double()) @ (kernel.T @ v)


@settings(max_examples=15, deadline=None)
@given(n=st.integers(1, 24), ratio=st.integers(1, 5))
def test_a_short_row_has_the_landmarks_of_a_strided_convolution(n, ratio):
    layer = build(f"landmarks=24, ratio={ratio}, iterations=40, conv=0")
    u, v = randn(2, 2, n, 4), randn(2, 2, n, 4, seed=1)
    expected = torch.stack([by_hand(layer, *uv) for uv in zip(u.flatten(0, 1), v.flatten(0, 1), strict=True)])
    torch.testing.assert_close(layer.attend(u, v).flatten(0, 1), expected)


def test_a_longer_row_has_means_in_place_of_tokens():
    layer, u, v = build("landmarks=3, ratio=2"), randn(1, 2, 24, 4), randn(1, 2, 24, 4, seed=1)
    found, _ = layer._summaries(u, None)
    expected, _ = layer._summaries(u.unflatten(2, (6, 4)).mean(dim=3), None)
    torch.testing.assert_close(found, expected)
    assert layer.attend(u, v).shape == v.shape


def test_the_convolution_adds_values_nearby():
    layer, u, v = build("conv=3"), randn(1, 2, 9, 4), randn(1, 2, 9, 4, seed=1)
    assert layer.conv is not None
    with_conv, filters = layer.attend(u, v), layer.conv.weight[:, 0, :, 0]
    layer.conv = None
    near = F.pad(v, (0, 0, 1, 1)).unfold(2, 3, 1)
    torch.testing.assert_close(with_conv - layer.attend(u, v), torch.einsum("bhnct,ht->bhnc", near, filters))


@settings(max_examples=15, deadline=None)
@given(r=st.integers(1, 12), scale=st.floats(0, 3))
def test_newton_finds_the_inverse(r, scale):
    points = scale * randn(r, 3)
    a = gaussian_kernel(points, points)
    torch.testing.assert_close(newton_inverse(a, 40), torch.linalg.inv(a + 0.01 * torch.eye(r).double()))


def test_far_apart_vectors_never_have_a_kernel_above_one():
    far = 1e4 * torch.randn(50, 8)
    assert float(gaussian_kernel(far, far).max()) <= 1


def test_sizes_below_one_are_refused():
    with pytest.raises(UsageError, match="at least 1"):
        build("landmarks=0")
